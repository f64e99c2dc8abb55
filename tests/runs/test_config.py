"""A run as data: what is misspelt or mistyped is one clear sentence, and what is right arrives typed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gear_rl import Gear, RandomOnsets, Shuffled
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.config import build_method, load_config, parse_word, settings_of
from support import commands

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


def test_a_setting_of_the_default_method_needs_no_name():
    assert build_method(load_config(None, [*BASE, "--credit.clip", "[0.5, 2]"]).credit) == Gear(
        clip=(0.5, 2.0)
    )


def test_a_placebos_method_has_settings_too():
    found = load_config(
        None, [*BASE, "--credit", "shuffled", "--credit.of", "gear", "--credit.of.alpha", "3"]
    )
    assert build_method(found.credit) == Shuffled(of=Gear(alpha=3.0))
    unnamed = load_config(None, [*BASE, "--credit", "random_onsets", "--credit.of.alpha", "3"])
    assert build_method(unnamed.credit) == RandomOnsets(of=Gear(alpha=3.0)), "of what it is made by default"
    assert build_method("random_onsets") == RandomOnsets()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--modle", "x"], "modle: no such setting; did you mean model?"),
        (["--learnin_rate", "1"], "learnin_rate: no such setting; did you mean learning_rate?"),
        (["--learning_rate", "fast"], "learning_rate: 'fast' is not right: Input should be a valid number"),
        (["--max_steps", "1.5"], "max_steps: 1.5 is not right: Input should be a valid integer"),
        (["--chat", "[]"], r"chat: \[\] is not right: Input should be a valid boolean"),
        (["--max_steps"], "--max_steps: its value is missing"),
        (["max_steps"], "'max_steps': expected --key value"),
        (["--model.name", "x"], "model: {'name': 'x'} is not right: Input should be a valid string"),
    ],
)
def test_bad_keys_and_values_are_named(words, message):
    with pytest.raises(InputError, match=message):
        load_config(None, [*BASE, *words])


def test_a_missing_key_says_how_to_give_it():
    with pytest.raises(InputError, match=r"reward: missing; give it in the file or as --reward VALUE"):
        load_config(None, BASE[:4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "run.yaml, line 1: expected"),
        ("- model", "expected 'key: value' lines"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(file)
    with pytest.raises(InputError, match="does not exist"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("credit", "message"),
    [
        ("gaer", "credit: no method 'gaer'; did you mean gear?"),
        (
            {"name": "gear", "alhpa": 1},
            "credit.alhpa: method 'gear' has no such setting; did you mean alpha?",
        ),
        ({"name": "gear", "alpha": "x"}, "credit.alpha: 'x' is not right"),
        ({"name": "gear", "alpha": -1}, "credit.alpha: -1.0 must be a finite number, 0 or more"),
        (
            {"name": "gear", "end_rule": "never"},
            "credit.end_rule: 'never' is not right: Input should be 'next_fork'",
        ),
        ({"name": "shuffled", "of": {"name": "gear", "alpah": 1}}, "credit.of.alpah"),
        ({"name": "shuffled", "of": {"alpah": 1}}, "credit.of.alpah: method 'gear' has no such setting"),
        ({"name": "shuffled", "of": 3}, "credit.of: 3 is no method; give a name"),
        ({"name": "shuffled", "of": ["gear"]}, r"credit.of: \['gear'\] is no method"),
        ({"name": "shuffled", "of": {"name": 3}}, "credit.of.name: missing"),
        ({"name": "random_onsets", "of": "rlsd"}, "credit.of: 'rlsd' is not of the kind .* give gear"),
        ({"alpha": 1}, "credit.name: missing"),
        (5, "credit: 5 is no method; give a name"),
        (["gear"], "credit: .* is no method; give a name"),
        ("no.such.module:X", "credit: cannot import 'no.such.module'"),
        ("json:Loads", "credit: 'json' has no 'Loads'; did you mean loads"),
        ("json:loads", "credit: json:loads is no method"),
    ],
)
def test_a_bad_method_is_named(credit, message):
    with pytest.raises(InputError, match=message):
        build_method(credit)


def test_a_method_from_outside_needs_no_registration():
    outside = build_method({"name": "examples.add_a_method:Uncertain", "fork_nats": 1})
    assert outside.name == "uncertain"
    assert outside.fork_nats == 1.0


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_is_explained(name):
    for setting in settings_of(METHODS[name]):
        assert setting["help"], f"{name}.{setting['name']} needs a text under the field"


# --- data and rewards ----------------------------------------------------------------------------------------


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


ROWS = [{"question": f"{i}+1", "gold": str(i + 1)} for i in range(3)]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_every_kind_of_local_file_is_read(tmp_path, kind):
    import pandas as pd

    file = str(tmp_path / f"rows.{kind}")
    frame = pd.DataFrame(ROWS)
    if kind == "csv":
        frame.to_csv(file, index=False)
    elif kind == "parquet":
        frame.to_parquet(file)
    else:
        frame.to_json(file, orient="records", lines=kind == "jsonl")
    found = load_rows(file, columns={"prompt": "question", "answer": "gold"}, chat=True)
    assert found[2]["prompt"] == [{"role": "user", "content": "2+1"}]
    assert str(found[2]["answer"]) == "3"
    assert load_rows(file, columns={"prompt": "question"}, chat=False)[0]["prompt"] == "0+1"


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.json", "empty.csv"])
def test_an_empty_dataset_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"dataset: .*{name}"):
        load_rows(write(tmp_path, name, "prompt\n" if name.endswith("csv") else ""), chat=True)


def test_missing_columns_files_and_names_are_said(tmp_path):
    file = write(tmp_path, "rows.jsonl", json.dumps(ROWS[0]))
    with pytest.raises(InputError, match="no column 'prompt', only question, gold; name yours with"):
        load_rows(file, chat=True)
    with pytest.raises(
        InputError, match=r"columns.prompt: .* has no column 'qestion'; did you mean question?"
    ):
        load_rows(file, columns={"prompt": "qestion"}, chat=True)
    with pytest.raises(InputError, match=r"none\.jsonl does not exist"):
        load_rows(str(tmp_path / "none.jsonl"), chat=True)
    with pytest.raises(InputError, match="the arena's chain has no tier 'hrad'; did you mean hard"):
        load_rows("arena/hrad", chat=True)
    with pytest.raises(InputError, match="'no/such-set' cannot be loaded: "):
        load_rows("no/such-set", chat=True)


def test_columns_that_the_first_line_lacks_are_kept(tmp_path):
    file = write(tmp_path, "late.jsonl", '{"prompt": "a"}\n{"prompt": "b", "answer": "4"}\n')
    assert load_rows(file, chat=False)["answer"] == [None, "4"]


def test_bad_files_of_every_kind_are_named(tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="cannot be loaded: "):
        load_rows(str(tmp_path / "nothing"), chat=True)
    both = write(tmp_path, "both.jsonl", '{"prompt": "a", "answer": "1", "gold": "2"}')
    with pytest.raises(InputError, match=r"columns.answer: .* has a column of that name already"):
        load_rows(both, columns={"answer": "gold"}, chat=True)


def test_a_saved_dataset_gives_the_split_that_was_asked_for(tmp_path):
    import datasets

    parts = {part: datasets.Dataset.from_list([{"prompt": part}]) for part in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    for part in parts:
        assert load_rows(str(tmp_path / "saved"), split=part, chat=False)[0]["prompt"] == part
    with pytest.raises(InputError, match="has no split 'tset'; did you mean test"):
        load_rows(str(tmp_path / "saved"), split="tset", chat=False)


def test_rewards_come_by_name_or_path():
    assert load_reward("arena")(["x"], ["1"]) == [0.0]
    assert load_reward("engines.tiny:vowels")(["aei"]) == [3.0]
    assert callable(load_reward("think_format_reward"))
    with pytest.raises(InputError, match="no reward 'acuracy_reward'; did you mean accuracy_reward"):
        load_reward("acuracy_reward")
    with pytest.raises(InputError, match=r"reward: engines.tiny:SPECIALS is list, not a function"):
        load_reward("engines.tiny:SPECIALS")


# --- the command as a person types it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", *BASE, "--credit", "gaer"], "gear: credit: no method 'gaer'; did you mean gear?"),
        (["train", *BASE, "--credit.alhpa", "1"], "gear: credit.alhpa: method 'gear' has no such setting"),
        (
            ["train", *BASE, "--dataset", "bad.jsonl"],
            "gear: bad.jsonl, line 1: Expecting",
        ),
        (["train", *BASE, "--dataset", "empty.jsonl"], "gear: dataset: empty.jsonl has no rows"),
        (["train", *BASE, "--dataset", "plain.jsonl"], "gear: train_dataset: method 'gear' compares"),
        (["demo", "--steps", "0"], "gear: --steps: 0 is no training; give 1 or more"),
        (["demo", "--learning_rate=1"], "gear: --learning_rate: no such option; see `gear demo --help`"),
        (
            ["train", *BASE, "--resume_from_checkpoint", "true"],
            "holds no checkpoint; leave it out to begin anew",
        ),
        (["demo", "--task", "chian"], "gear: --task: no task 'chian'; did you mean chain?"),
        (["methods", "gaer"], "gear: no method 'gaer'; did you mean gear?"),
        (["view", "none.jsonl"], "gear: none.jsonl does not exist"),
        (["view", "plain.jsonl"], "gear: plain.jsonl, line 1: not a credit record, it lacks"),
    ],
)
def test_bad_input_is_one_line_without_a_traceback(tmp_path, words, message):
    write(tmp_path, "bad.jsonl", '{"prompt": "a"\n{"prompt": \n')
    write(tmp_path, "empty.jsonl", "\n")
    write(tmp_path, "plain.jsonl", "\n".join(json.dumps({"prompt": f"{i}"}) for i in range(9)))
    done = commands.gear(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1, done.stderr


def test_bad_input_is_one_line_of_a_process_too():
    words = ["methods", "gaer"]
    command = [sys.executable, "-c", "from gear_rl.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr == "gear: no method 'gaer'; did you mean gear?\n"


def test_methods_as_json():
    done = commands.gear("methods", "--json")
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(found) == list(METHODS)
    wanted = "rlsd serl oar_p oar_g grail shear opsd sdpo sdpg crpo entropy_forks gigpo mt_grpo igpo"
    assert {*wanted.split()} <= found.keys()
    for row in found.values():
        assert {"needs", "source", "settings", "idea", "additive", "distils"} <= row.keys()
        assert all(setting["help"] for setting in row["settings"]), row["name"]
        assert row["idea"].endswith("."), "the first line of the docstring is a whole sentence"
    assert found["gear"]["needs"] == ["divergence", "student_logprob", "teacher_logprob", "student_entropy"]
    assert found["gear"]["source"] == "arXiv:2605.11853"
    alpha = next(setting for setting in found["gear"]["settings"] if setting["name"] == "alpha")
    assert (alpha["default"], alpha["type"]) == (4.0, "float")
    assert found["shuffled"]["settings"][0]["default"] == "gear"
    assert all(set(row) >= {"name", "needs", "settings", "source"} for row in found.values())


def test_the_doctor_finds_this_machine_fit():
    done = commands.gear("doctor")
    assert done.returncode == 0, done.stdout
    told = re.sub(r"[│\s]+", " ", done.stdout)
    assert "its loss takes one advantage per token" in told
    assert "arena model" in told


def test_a_dry_run_prints_what_would_run():
    done = commands.gear("train", *BASE, "--learning_rate", "1e-4", "--dry-run", "--credit.alpha", "0.5")
    assert "learning_rate: 0.0001" in done.stdout
    assert "alpha=0.5" in done.stdout


@pytest.mark.parametrize("word", ["010", "010.5", "00.1", "08e1", "1:30", "2026-11-25"])
def test_a_number_that_yaml_may_not_mean_stays_text(word):
    assert parse_word(word) == word
