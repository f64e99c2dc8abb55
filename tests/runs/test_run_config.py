"""A configuration arrives typed, and the error of a misspelt key or a wrong value names it."""

import subprocess
import sys

import pytest

from gear_rl import Gear
from gear_rl.errors import InputError
from gear_rl.method_builder import build_method
from gear_rl.runs.run_config import load_config, load_outline, trainer_settings
from gear_rl.yaml_values import parse_word, yaml_text

BASE = ["--model", "arena", "--dataset", "arena", "--reward", "arena"]


def test_a_file_and_its_overrides_become_typed_settings(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: m\ndataset: d\nreward: [a, b]\nlearning_rate: 1e-4\n"
        "credit: {name: gear, alpha: 2}\nbeta: 0\nsave_strategy: no\n"
    )
    config = load_config(file, ["--credit.alpha", "0.5", "--max-steps=7", "--report_to", "[wandb]"])
    assert config.reward == ["a", "b"]
    assert config.trainer == {
        "learning_rate": 1e-4,
        "beta": 0.0,
        "max_steps": 7,
        "report_to": ["wandb"],
        "save_strategy": "no",
    }
    assert build_method(config.credit) == Gear(alpha=0.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--modle", "x"], "modle: no such setting; did you mean model?"),
        (["--learnin_rate", "1"], "learnin_rate: no such setting; did you mean learning_rate?"),
        (["--eval_dataset", "{}"], "eval_dataset: {}; give text, or a mapping of length 1 or more, or None"),
        (["--lora.r", "eight"], "lora.r: 'eight'; give a whole number of 1 or more"),
        (["--lora_dropout", "2"], "lora.lora_dropout: 2; give a number from 0 to 1"),
        (["--num_generations", "0"], "num_generations: 0; give a whole number of 2 or more"),
        (
            ["--max-completion-length", "null"],
            "max_completion_length: None; give a whole number of 1 or more",
        ),
        (["--learning_rate", "-1"], "learning_rate: -1; give a number of 0 or more"),
        (["--scale_rewards", "grupo"], "scale_rewards: 'grupo'; give "),
        (["--reward", "null"], "reward: missing; give it in the file or as --reward VALUE"),
    ],
)
def test_bad_keys_and_values_are_named(words, message):
    with pytest.raises(InputError, match=message):
        load_config(None, [*BASE, *words])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: a\nmodel: b", "run.yaml, line 2: the key 'model' stands twice"),
        ("learning_rate: true", "learning_rate: True; give a number"),
        ("max_steps: 1:30", "max_steps: '1:30'; give a whole number"),
        ("learning_rate: .nan", "learning_rate: '.nan'; give a number"),
        ("credit: gear\ncredit.alpha: 2", "credit.alpha: .* write credit: {name: gear, alpha: 2}"),
        ("run_name: 1.10", "run_name: 1.1; give text, or None, in quotes"),
    ],
)
def test_a_broken_file_or_a_value_that_would_become_another_is_named(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("credit", "message"),
    [
        ("gaer", "credit: no method 'gaer'; did you mean gear?"),
        ("gear:token", "credit: 'token' in 'gear:token' is no setting; write .*, or gear:plain, gear:tokens"),
        ("GEAR", "credit: no method 'GEAR'; did you mean gear"),
        ({"name": "raft", "top": 1}, "credit.top: no such setting of 'raft'; it has none"),
        ({"name": "gear", "alpha": -1}, "credit.alpha: -1; give a number of 0 or more"),
        ("math:sqrt", "credit: math:sqrt is no method, since it lacks name, source, needs "),
        ({"name": "shuffled", "of": ["gear"]}, r"credit.of: \['gear'\] is no method; give a name"),
        ({"name": "random_onsets", "of": "rlsd"}, r"credit.of: Rlsd\(.*; give gear"),
        ({"alpha": 1}, "credit.name: missing"),
        ({"name": "json:loads", "alpha": 1}, "credit: json:loads is no dataclass, so it takes no settings"),
    ],
)
def test_a_bad_method_is_named(credit, message):
    with pytest.raises(InputError, match=message):
        build_method(credit)


@pytest.mark.parametrize(
    "word", ["010", "010.5", "08e1", "1:30", "2026-11-25", "no", "Y", "0o10", "1_000", "=", "1e", "."]
)
def test_a_word_that_yaml_may_not_mean_stays_text(word):
    assert parse_word(word) == word and parse_word(f"[{word}]") == [word]


@pytest.mark.parametrize(
    "text", ["007", "1.10", "{prompt}", "[a]", "Q: {prompt}\nA: 1 # the answer", "7e12345", ".5e3"]
)
def test_a_text_setting_takes_the_word_as_it_stands_and_a_file_too(text, tmp_path):
    config = load_config(None, [*BASE, "--run_name", text])
    assert config.trainer["run_name"] == text
    (tmp_path / "run.yaml").write_text(yaml_text(config.model_dump() | config.trainer))
    assert load_config(tmp_path / "run.yaml").trainer == config.trainer


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (["--credit.of.alpha 1", "--credit shuffled"], "credit", {"name": "shuffled", "of": {"alpha": 1}}),
        (["--credit.alpha 2", "--credit gear:tokens"], "credit", {"name": "gear:tokens", "alpha": 2}),
        (["--tools my.mod:f", "--beta 0"], "tools", ["my.mod:f"]),
        (
            ["--reward_weights 1", "--report_to wandb"],
            "trainer",
            {"report_to": "wandb", "reward_weights": [1.0]},
        ),
        (["--lora_r 8", '--lora {"r":4}'], "lora", {"r": 8}),
    ],
)
def test_a_setting_within_another_and_one_word_of_a_list_count_in_any_order(words, setting, value):
    for order in (words, words[::-1]):
        pairs = [word for pair in order for word in pair.split(" ")]
        assert getattr(load_config(None, [*BASE, *pairs]), setting) == value


def test_the_flags_of_trls_scripts_are_known():
    words = "--model_name_or_path arena --dataset_name arena --reward_funcs arena math --use_peft --lora_r 8"
    config = load_config(
        None, [*words.split(), "--attn_implementation", "sdpa", "--bf16", "--max_steps", "2"]
    )
    assert (config.model, config.dataset, config.reward) == ("arena", "arena", ["arena", "math"])
    assert config.lora == {"r": 8, "lora_alpha": 32, "lora_dropout": 0.05}
    assert config.trainer == {
        "model_init_kwargs": {"attn_implementation": "sdpa"},
        "bf16": True,
        "max_steps": 2,
    }


def test_the_outline_knows_every_setting_of_the_trainer():
    words = [word for name in trainer_settings() for word in (f"--{name}", "0")]
    assert load_outline(None, [*BASE, *words]).trainer.keys() == trainer_settings().keys()
    with pytest.raises(InputError, match="max_step: no such setting; did you mean max_steps"):
        load_outline(None, [*BASE, "--max_step", "7"])
    flags = "--bf16 --reward_weights 1.0 2.0 --report_to wandb tensorboard"
    given = [*BASE, *flags.split()]
    assert load_outline(None, given).trainer == load_config(None, given).trainer


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--max_step 7", "max_step: no such setting"),
        ("--credit geer", "credit: no method 'geer'"),
        ("--model smolm2", "model: no model 'smolm2'"),
        ("--dataset none.jsonl", "dataset: none.jsonl does not exist"),
        ("--output_dir .", "output_dir: . holds a run already"),
        ("--output_dir null", "output_dir: runs/train holds a run already"),
    ],
)
def test_what_is_misnamed_is_refused_before_heavy_imports(words, fault, tmp_path):
    """In a new process: TRL and transformers are imported by other tests."""
    (tmp_path / "runs" / "train").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "runs" / "train"):
        (folder / "trainer_state.json").write_text("{}")
    code = (
        "import sys\nfrom gear_rl.cli.app import app\n"
        f"try: app({['train', *BASE, *words.split()]!r})\n"
        "finally: print(*({'transformers', 'trl.trainer', 'datasets'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (2, ""), done.stderr
    assert fault in done.stderr
