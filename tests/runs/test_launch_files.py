"""`gear export verl`: the same rows, rewards and settings as `gear train`, in verl's form, or one clear error."""

import dataclasses
import json
import re
import shlex
from math import isnan
from pathlib import Path
from typing import Any

import datasets
import pytest
from peft import LoraConfig

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.data.rows import load_splits
from gear_rl.engines.trl.config import GEARConfig
from gear_rl.errors import InputError
from gear_rl.runs import model_wheels
from gear_rl.runs.trl_run import load_environment
from gear_rl.runs.verl.launch_files import DEFAULTS, export, read_run
from gear_rl.runs.verl.reward_function import scorer

CHAIN = ["--model", "arena", "--dataset", "arena/easy", "--reward", "arena", "--held_out", "8"]
ERRANDS = ["--model", "arena/errands", "--dataset", "arena/errands/easy", "--held_out", "8"]
BATCH = ["--per_device_train_batch_size", "64"]
FOUR = ["--num_generations", "4"]


def exported(folder: Path, *words: str, **options: Any) -> dict[str, int]:
    return export(read_run(None, [*words]), folder, **options)


def overrides(folder: Path) -> dict[str, str]:
    """Hydra's keys and values, with Hydra's quotes."""
    text = (folder / "launch.sh").read_text(encoding="utf-8")
    words = shlex.split(text.partition("main_ppo")[2].replace("\\\n", " "))
    return dict(word.split("=", 1) for word in words if word != "$@")


def command(folder: Path, *words: str, **options: int) -> dict[str, str]:
    """What is exported, as the overrides of its command."""
    exported(folder, *words, **options)
    return overrides(folder)


def rows_of(file: Path) -> datasets.Dataset:
    """The rows as verl reads them."""
    return datasets.load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(file.parent))


def test_rows_and_reward_are_those_of_gear_train(tmp_path):
    assert exported(tmp_path, *CHAIN, *BATCH) == {"train": 4096, "test": 8}
    train, test = load_splits("arena/easy", chat=True, held_out=8)
    for name, rows in (("train", train), ("test", test)):
        made = rows_of(tmp_path / f"{name}.parquet")
        assert list(made["extra_info"]) == list(rows) and list(made["prompt"]) == list(rows["prompt"])
        assert [row["ground_truth"] for row in made["reward_model"]] == list(rows["answer"])
        assert made[0]["reward_model"]["style"] == "rule"
        assert set(made["data_source"]) == {"arena/easy"} and "agent_name" not in made.column_names
    row, names = rows_of(tmp_path / "train.parquet")[0], dict[str, Any]()
    exec((tmp_path / "reward.py").read_text(encoding="utf-8"), names)
    right = row["reward_model"]["ground_truth"]
    for answer in (right, "100"):
        score = names["compute_score"]("arena/easy", f"ans {answer}", right, row["extra_info"])
        assert score == float(answer == right)


def test_several_rewards_are_weighed_without_none(tmp_path):
    words = ["--reward", "[arena, support.desk:digits, support.desk:silent]"]
    exported(tmp_path, *CHAIN, *words, "--reward_weights", "[1.0, 0.5, 3.0]", *BATCH)
    names: dict = {}
    exec((tmp_path / "reward.py").read_text(encoding="utf-8"), names)
    score = names["compute_score"]("d", "ans 45", "45", {"answer": "45", "prompt": [{"content": "?"}]})
    assert score["score"] == score["acc"] == 1.0 + 0.5 * 2
    assert score["support.desk:digits"] == 2.0 and isnan(score["support.desk:silent"])


def test_scores_that_a_reward_logs_are_in_verls_result(tmp_path):
    score = scorer(["arena"], dataset="arena/codebook/easy")
    found = score("d", "codes Ka 17 Bo 28", "", {"answer": "Ka 17 Bo 08"})
    assert found == {"score": 0.5, "acc": 0.5, "step_scores": "[[9, 11, 1.0], [15, 17, 0.0]]"}


def test_an_agents_rows_reset_its_environment(tmp_path):
    given = command(tmp_path, *ERRANDS, *BATCH, "--max_tool_calling_iterations", "4")
    row = rows_of(tmp_path / "train.parquet")[0]
    assert row["agent_name"] == "gear_env" and given["++gear.environment"] == "arena/errands/easy"
    environment = load_environment(read_run(None, ERRANDS))()
    environment.reset(**row["extra_info"])
    assert environment.get_reward() == 0.0
    assert given["actor_rollout_ref.rollout.multi_turn.max_assistant_turns"] == "5", "one after the last call"
    assert "reward.custom_reward_function.path" not in given and not (tmp_path / "reward.py").exists()


def test_the_settings_become_verls(tmp_path):
    words = (
        "--credit.alpha 0.5 --learning_rate 1e-4 --num_generations 4 --max_steps 600 --beta 0.1 --top_k 5 "
        "--epsilon_high 0.28 --max_completion_length 24 --adam_beta2 0.95 --save_total_limit 2 "
        "--warmup_steps 10.0"
    )
    given = command(tmp_path, *CHAIN, *BATCH, *words.split(), gpus=2, prompt_tokens=64)
    assert next(iter(given.items())) == ("+gear", "gear")
    assert given["++gear.alpha"] == "0.5"
    wanted = {
        "data.train_batch_size": "16", "data.max_prompt_length": "64", "data.max_response_length": "24",
        "+data.apply_chat_template_kwargs.enable_thinking": "false",
        "actor_rollout_ref.rollout.n": "4", "actor_rollout_ref.rollout.top_k": "5",
        "actor_rollout_ref.actor.optim.betas": "[0.9,0.95]", "trainer.max_actor_ckpt_to_keep": "2",
        "actor_rollout_ref.actor.optim.lr_warmup_steps": "10",
        "actor_rollout_ref.actor.optim.lr": "0.0001", "actor_rollout_ref.actor.ppo_mini_batch_size": "16",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "32",
        "actor_rollout_ref.actor.clip_ratio_low": "0.2", "actor_rollout_ref.actor.clip_ratio_high": "0.28",
        "actor_rollout_ref.actor.use_kl_loss": "true", "actor_rollout_ref.actor.kl_loss_coef": "0.1",
        "trainer.total_training_steps": "600", "trainer.n_gpus_per_node": "2",
        "trainer.total_epochs": "3",  # 4096 rows are 256 steps of 16 prompts
        "actor_rollout_ref.model.path": str(tmp_path / "model"), "trainer.val_before_train": "false",
    }  # fmt: skip
    assert {name: given[name] for name in wanted} == wanted


def test_cispo_bounds_the_ratio_as_in_trl(tmp_path):
    given = command(tmp_path, *CHAIN, *BATCH, "--loss_type", "cispo", "--epsilon_high", "5")
    bounds = [given[f"actor_rollout_ref.actor.clip_ratio_{side}"] for side in ("low", "high")]
    assert [float(bound) for bound in bounds] == [1.0, 4.0], "verl's: from 1 - low to 1 + high"


def test_a_method_in_words_becomes_its_settings(tmp_path):
    words = [*CHAIN, *BATCH, "--teacher_model_kind", "live"]
    found = command(tmp_path / "tokens", *words, "--credit", "gear:tokens,alpha=2")
    chosen = {key: found[key] for key in ("+gear", "++gear.onset_rule", "++gear.alpha")}
    assert chosen == {"+gear": "gear", "++gear.onset_rule": "never", "++gear.alpha": "2"}
    found = command(tmp_path / "two", *words, "--credit", "gear*stare")
    assert found["+gear"] == "mixed" and found["++gear.second"] == "{name:stare}"


def test_another_models_weights_are_the_teachers_there_too(tmp_path, monkeypatch):
    (tmp_path / "large").mkdir()
    monkeypatch.chdir(tmp_path)
    given = command(tmp_path / "out", *CHAIN, *BATCH, "--credit", "rlsd", "--teacher_model", "./large")
    assert given["++gear.teacher_model"] == str(tmp_path / "large")
    assert "teacher_model" not in (tmp_path / "out" / "launch.sh").read_text().partition("set -euo")[0]
    assert "++gear.teacher_model" not in command(tmp_path / "none", *CHAIN, *BATCH)


def test_a_short_name_is_written_as_the_folder_of_its_model(tmp_path, monkeypatch):
    monkeypatch.setattr(model_wheels, "kept_folder", lambda: tmp_path)
    given = command(tmp_path / "out", *CHAIN, *BATCH, "--model", "smollm2")
    assert given["actor_rollout_ref.model.path"] == str(tmp_path)
    assert given["actor_rollout_ref.rollout.top_k"] == "-1", "verl's word for all tokens"


REFUSED = {
    "model: smollm2 is not on this machine": ["--model", "smollm2"],
    "chat: verl takes prompts as messages": ["--dataset", "{folder}/rows.jsonl", "--chat", "false"],
    "environment: several": ["--environment", "{{one: json:loads, two: json:loads}}"],
    "gear.teacher: 'sync'": ["--credit", "rlsd"],
    "loss_type: 'vespo'": ["--loss_type", "vespo"],
    "importance_sampling_level: 'sequence'": ["--importance_sampling_level", "sequence"],
    "scale_rewards: 'batch'": ["--scale_rewards", "batch"],
    "num_generations: 7 does not divide": ["--num_generations", "7"],
    "--gpus: 8 does not divide the 12 completions": [
        "--gradient_accumulation_steps",
        "3",
        *BATCH[:1],
        "4",
        *FOUR,
    ],
    "save_strategy: 'best'": ["--save_strategy", "best"],
    "eval_strategy: 'epoch'": ["--eval_strategy", "epoch"],
    "save_steps: 0.1 is a share": ["--save_steps", "0.1"],
    "reward: verl takes none": ["--reward", "judges:long"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_is_one_error_and_writes_nothing(message, tmp_path, monkeypatch):
    monkeypatch.setenv("GEAR_CACHE", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "2 + 2", "answer": "4"}) + "\n")
    words = [word.format(folder=tmp_path) for word in REFUSED[message]]
    base = {"--environment": CHAIN[:4], "judges:long": ERRANDS}
    words = [*next((found for key, found in base.items() if key in words), CHAIN[:6]), *words]
    with pytest.raises(InputError, match=re.escape(message)):
        exported(tmp_path / "out", *BATCH, *words)
    assert not (tmp_path / "out").exists()


def test_rows_that_cannot_be_used_are_not_exported(tmp_path):
    rows = [{"q": "2 + 2", "a": "4"}, {"q": "", "a": "5"}, {"q": "3 + 3", "a": "6"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--model", "some/model", "--dataset", str(tmp_path / "rows.jsonl"), "--reward", "math"]
    done = exported(tmp_path / "out", *words, "--columns.prompt", "q", "--columns.answer", "a")
    assert done == {"train": 2}
    given = overrides(tmp_path / "out")
    assert given["data.val_files"] == given["data.train_files"], "verl reads one in any case"
    assert (given["trainer.test_freq"], given["trainer.val_before_train"]) == ("-1", "false")
    assert given["actor_rollout_ref.model.path"] == "some/model"
    assert rows_of(tmp_path / "out" / "train.parquet")[0]["data_source"] == "rows"


def test_calls_keep_their_own_arguments_and_functions_that_verl_does_not_show_are_refused(tmp_path):
    calls = [[{"name": "f", "arguments": {"x": 1}}], [{"name": "g", "arguments": {"y": 2.5}}]]
    rows = [{"prompt": f"q{i}", "calls": call, "tools": []} for i, call in enumerate(calls)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--model", "some/model", "--dataset", str(tmp_path / "rows.jsonl"), "--reward", "tool_calls"]
    with pytest.raises(InputError, match="'tools', which verl shows to no model") as caught:
        exported(tmp_path / "out", *words)
    exported(tmp_path / "out", *words, *re.findall(r"--columns\S+ tools", str(caught.value))[0].split())
    made = rows_of(tmp_path / "out" / "train.parquet")
    assert [row["calls"] for row in made["extra_info"]] == calls


def test_the_defaults_are_those_of_gear_train():
    fields = {f.name: f for f in dataclasses.fields(GEARConfig)}
    theirs = {name: fields[name].default for name in DEFAULTS}
    ours = {name: str(value) for name, value in DEFAULTS.items()}
    assert {name: str(getattr(value, "value", value)) for name, value in theirs.items()} == ours
    assert LoraConfig().r == LoraConfig().lora_alpha == 8 and LoraConfig().target_modules is None
    assert not set(DEFAULTS) & {f.name for f in dataclasses.fields(CreditConfig)}
