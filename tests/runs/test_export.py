"""`gear export verl`: the same rows, rewards and settings as `gear train`, in verl's form, or one clear error."""

import dataclasses
import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from peft import LoraConfig

from gear_rl.credit.config import CreditConfig
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.data.rows import load_splits
from gear_rl.engines.trl.config import GEARConfig
from gear_rl.errors import InputError
from gear_rl.runs.config import load_config
from gear_rl.runs.trainer import load_environment
from gear_rl.runs.verl.export import DEFAULTS, export, read_run
from support.commands import gear

CHAIN = ["--model", "arena", "--dataset", "arena/easy", "--reward", "arena", "--held_out", "8"]
ERRANDS = ["--model", "arena/errands", "--dataset", "arena/errands/easy", "--held_out", "8"]
BATCH = ["--per_device_train_batch_size", "64"]


def exported(folder: Path, *words: str, **options: Any) -> dict[str, int]:
    return export(read_run(None, [*words]), folder, **options)


def overrides(folder: Path) -> dict[str, str]:
    """Hydra's keys and values as the shell hands them over, quotes of Hydra's own included."""
    text = (folder / "launch.sh").read_text(encoding="utf-8")
    words = shlex.split(text.partition("main_ppo")[2].replace("\\\n", " "))
    return dict(word.split("=", 1) for word in words if word != "$@")


def command(folder: Path, *words: str, **options: int) -> dict[str, str]:
    """What is exported, as the overrides of its command."""
    exported(folder, *words, **options)
    return overrides(folder)


def plain(value):
    """Pandas' arrays as lists."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if hasattr(value, "tolist") or isinstance(value, list) else value


def rows_of(file: Path) -> list[dict]:
    return [plain(row) for row in pd.read_parquet(file).to_dict("records")]


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    assert exported(folder, *CHAIN, *BATCH) == {"train": 4096, "test": 8}
    return folder


@pytest.fixture(scope="module")
def errands(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("errands")
    exported(folder, *ERRANDS, *BATCH)
    return folder


def test_the_parquet_holds_the_rows_that_gear_train_reads(chain):
    train, test = load_splits("arena/easy", chat=True, held_out=8)
    for name, rows in (("train", train), ("test", test)):
        made = rows_of(chain / f"{name}.parquet")
        assert [row["extra_info"] for row in made] == list(rows)
        assert [row["prompt"] for row in made] == list(rows["prompt"])
        assert [row["reward_model"]["ground_truth"] for row in made] == list(rows["answer"])
        assert {row["data_source"] for row in made} == {"arena/easy"} and "agent_name" not in made[0]


def test_verls_reader_finds_the_columns_with_their_types(chain):
    import datasets

    rows = datasets.load_dataset("parquet", data_files=str(chain / "train.parquet"), split="train")
    assert rows[0]["prompt"] == rows[0]["extra_info"]["prompt"] and rows[0]["reward_model"]["style"] == "rule"


def test_the_reward_file_is_what_verl_loads_and_scores_as_under_trl(chain):
    spec = importlib.util.spec_from_file_location("exported_reward", chain / "reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = rows_of(chain / "train.parquet")[0]
    right, wrong = row["reward_model"]["ground_truth"], "100"
    for answer in (right, wrong):
        text = f"ans {answer}"
        score = module.compute_score(
            data_source=row["data_source"],
            solution_str=text,
            ground_truth=right,
            extra_info=row["extra_info"],
        )
        assert (
            [score] == load_reward("arena", "arena/easy")([text], answer=[right]) == [float(answer == right)]
        )


def test_several_rewards_are_weighed_and_one_that_does_not_apply_counts_nothing(tmp_path, monkeypatch):
    (tmp_path / "judges.py").write_text(
        "def long(prompts, completions, **row): return [float(len(completions[0][0]['content']))]\n"
        "async def none(completions, answer, **row): return [None]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--reward", "[arena, judges:long, judges:none]", "--reward_weights", "[1.0, 0.5, 3.0]"]
    exported(tmp_path / "out", *CHAIN, *words, *BATCH)
    names: dict = {}
    exec((tmp_path / "out" / "reward.py").read_text(encoding="utf-8"), names)
    score = names["compute_score"]("d", "ans 45", "45", {"answer": "45", "prompt": [{"content": "?"}]})
    assert score["score"] == score["acc"] == 1.0 + 0.5 * len("ans 45")
    assert score["judges:long"] == 6.0 and score["judges:none"] != score["judges:none"], "not a number"


def test_an_agents_rows_reset_its_environment(errands):
    row, given = rows_of(errands / "train.parquet")[0], overrides(errands)
    assert row["agent_name"] == "gear_env" and given["gear.environment"] == "arena/errands/easy"
    environment = load_environment(read_run(None, ERRANDS))()
    environment.reset(**row["extra_info"])
    assert environment.get_reward() == 0.0
    assert "reward.custom_reward_function.path" not in given and not (errands / "reward.py").exists()


def test_the_command_says_what_the_file_says(tmp_path):
    words = [
        "--credit.alpha",
        "0.5",
        "--learning_rate",
        "1e-4",
        "--max_steps",
        "40",
        "--num_generations",
        "4",
    ]
    words += ["--beta", "0.1", "--epsilon_high", "0.28", "--max_completion_length", "24", "--top_k", "5"]
    words += ["--adam_beta2", "0.95", "--save_total_limit", "2", "--warmup_steps", "10.0"]
    given = command(tmp_path, *CHAIN, *BATCH, *words, gpus=2, prompt_tokens=64)
    assert next(iter(given.items())) == ("+gear", "gear")
    assert given["gear.alpha"] == "0.5"
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
        "trainer.total_training_steps": "40", "trainer.total_epochs": "1", "trainer.n_gpus_per_node": "2",
        "actor_rollout_ref.model.path": str(tmp_path / "model"), "trainer.val_before_train": "false",
    }  # fmt: skip
    assert {name: given[name] for name in wanted} == wanted


def test_a_training_longer_than_the_rows_has_the_epochs_it_needs(tmp_path):
    given = command(tmp_path, *CHAIN, *BATCH, "--max_steps", "600")
    assert given["trainer.total_epochs"] == "2", "4096 rows are 512 steps of 8 prompts"


def test_a_setting_that_the_group_does_not_have_is_added(tmp_path):
    given = command(tmp_path, *CHAIN, *BATCH, "--credit", "{name: shuffled, of: {name: rlsd}}",
                               "--teacher_model_kind", "live")  # fmt: skip
    assert given["+gear"] == "shuffled" and given["+gear.of"] == "{name:rlsd}"


def test_a_short_name_is_written_as_the_folder_of_its_model(tmp_path, monkeypatch):
    monkeypatch.setenv("GEAR_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "smollm2"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    given = command(tmp_path / "out", *CHAIN, *BATCH, "--model", "smollm2")
    assert given["actor_rollout_ref.model.path"] == str(folder)


@pytest.mark.parametrize(
    ("lora", "wanted"),
    [
        (
            "{r: 32, lora_alpha: 64, lora_dropout: 0.0, target_modules: all-linear}",
            ["32", "64", "all-linear"],
        ),
        ("{target_modules: [q_proj, v_proj]}", ["8", "8", "[q_proj,v_proj]"]),
        ("{r: 4}", ["4", "8", "null"]),
    ],
)
def test_an_adapter_is_that_of_peft_and_merged_for_vllm(lora, wanted, tmp_path):
    given = command(tmp_path, *CHAIN, *BATCH, "--lora", lora)
    names = ["lora_rank", "lora_alpha", "target_modules", "lora.merge"]
    assert [given[f"actor_rollout_ref.model.{name}"] for name in names] == [*wanted, "true"]
    assert LoraConfig().r == LoraConfig().lora_alpha == 8 and LoraConfig().target_modules is None


def test_what_does_not_come_along_is_said_in_the_command(tmp_path):
    said: list[str] = []
    words = ["--mask_truncated_completions", "true", "--use_vllm", "true"]
    exported(tmp_path, *CHAIN, *BATCH, *words, say=said.append)
    notes = [text.removeprefix("note: ") for text in said if text.startswith("note: ")]
    assert notes[0] == "left to verl's own settings: mask_truncated_completions"
    assert "linear" in notes[1]
    assert all(f"# {note}\n" in (tmp_path / "launch.sh").read_text(encoding="utf-8") for note in notes)


REFUSED = {
    "rollout_func: cannot be exported": ["--rollout_func", "json:loads"],
    "tools: cannot be exported": ["--tools", "[json:loads]"],
    "lora.use_rslora: True cannot be exported": ["--lora", "{{r: 8, use_rslora: true}}"],
    "lora.lora_dropout: 0.1 cannot be exported": ["--lora", "{{r: 8, lora_dropout: 0.1}}"],
    "model: smollm2 is not on this machine": ["--model", "smollm2"],
    "reward: 'accuracy_reward' is none of ours": ["--reward", "accuracy_reward"],
    "chat: verl takes prompts as messages": ["--dataset", "{folder}/rows.jsonl", "--chat", "false"],
    "environment: several": ["--environment", "{{one: json:loads, two: json:loads}}"],
    "no get_reward": ["--environment", "json:JSONDecoder"],
    "gear.credit: 'sdpo' adds a distillation term": ["--credit", "sdpo"],
    "gear.teacher: 'sync'": ["--credit", "rlsd"],
    "gear.teacher: 'ema'": ["--teacher_model_kind", "ema"],
    "loss_type: 'vespo'": ["--loss_type", "vespo"],
    "importance_sampling_level: 'sequence'": ["--importance_sampling_level", "sequence"],
    "scale_rewards: 'batch'": ["--scale_rewards", "batch"],
    "num_generations: 7 does not divide": ["--num_generations", "7"],
    "lr_scheduler_type: 'polynomial'": ["--lr_scheduler_type", "polynomial"],
    "gear.alhpa: no such setting": ["--credit", "{{name: gear, alhpa: 1}}"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_is_one_error_and_writes_nothing(message, tmp_path, monkeypatch):
    monkeypatch.setenv("GEAR_CACHE", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "2 + 2", "answer": "4"}) + "\n")
    words = [word.format(folder=tmp_path) for word in REFUSED[message]]
    if "--environment" in words:
        words = ["--model", "arena", "--dataset", "arena/easy", *words]
    else:
        words = [*CHAIN[:6], *words]
    with pytest.raises(InputError, match=re.escape(message)):
        exported(tmp_path / "out", *words, *BATCH)
    assert not (tmp_path / "out").exists()


def test_a_reward_beside_an_environment_that_judges_is_refused(tmp_path):
    with pytest.raises(InputError, match="reward: verl takes none"):
        exported(tmp_path / "out", *ERRANDS, "--reward", "judges:long", *BATCH)


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


def test_the_defaults_are_those_of_gear_train():
    fields = {f.name: f for f in dataclasses.fields(GEARConfig)}
    theirs = {name: fields[name].default for name in DEFAULTS}
    assert {name: str(getattr(value, "value", value)) for name, value in theirs.items()} == {
        name: str(value) for name, value in DEFAULTS.items()
    }
    assert not set(DEFAULTS) & {f.name for f in dataclasses.fields(CreditConfig)}


def test_the_recipes_can_be_exported(tmp_path, monkeypatch):
    """With their smoke rows, since their datasets are far away."""
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    for recipe in ("math_qwen3_4b", "tools_qwen3_4b"):
        config = load_config(root / "examples" / f"{recipe}.yaml")
        file = tmp_path / f"{recipe}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in config.smoke_rows))
        config = config.model_copy(update={"dataset": str(file), "dataset_config": None, "held_out": 1})
        export(config, tmp_path / recipe)
        given = overrides(tmp_path / recipe)
        assert (given["+gear"], given["data.train_batch_size"]) == ("gear", "16")
        assert "\n" in given["gear.teacher_prompt_template"]


def test_the_command_line_says_what_it_wrote_and_how_to_start(tmp_path):
    done = gear("export", "verl", *CHAIN, *BATCH, "--out", "here", "--gpus", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train.parquet (4096 rows)" in done.stdout.replace("\n", "")
    assert f"bash {tmp_path / 'here' / 'launch.sh'}" in done.stdout.replace("\n", " ")
    assert os.access(tmp_path / "here" / "launch.sh", os.X_OK)
    wrong = gear("export", "verl", *CHAIN, "--gpus", "0", cwd=tmp_path)
    assert wrong.returncode == 2 and "--gpus" in wrong.stderr
