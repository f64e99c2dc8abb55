"""A run as data: what is misspelt or mistyped is one clear sentence, and what is right arrives typed."""

import json

import pytest

from gear_rl import Gear, RandomOnsets, Shuffled
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.config import build_method, load_config, parse_word
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


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["--credit.clip", "[0.5, 2]"], Gear(clip=(0.5, 2.0))),
        (
            ["--credit", "shuffled", "--credit.of", "gear", "--credit.of.alpha", "3"],
            Shuffled(of=Gear(alpha=3.0)),
        ),
        (["--credit", "random_onsets", "--credit.of.alpha", "3"], RandomOnsets(of=Gear(alpha=3.0))),
        (["--credit", "random_onsets"], RandomOnsets()),
    ],
)
def test_settings_without_a_name_are_those_of_the_default_method(words, method):
    assert build_method(load_config(None, [*BASE, *words]).credit) == method


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
        (["--reward", "null"], "reward: missing; give it in the file or as --reward VALUE"),
    ],
)
def test_bad_keys_and_values_are_named(words, message):
    with pytest.raises(InputError, match=message):
        load_config(None, [*BASE, *words])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "run.yaml, line 1: expected"),
        ("- model", "expected 'key: value' lines"),
        ("model: a\nmodel: b", "run.yaml, line 2: the key 'model' stands twice"),
        (None, "run.yaml does not exist"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "run.yaml")


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
        ({"name": "shuffled", "of": ["gear"]}, r"credit.of: \['gear'\] is no method; give a name"),
        ({"name": "shuffled", "of": {"name": 3}}, "credit.of.name: missing"),
        ({"name": "random_onsets", "of": "rlsd"}, "credit.of: 'rlsd' is not of the kind .* give gear"),
        ({"alpha": 1}, "credit.name: missing"),
        (5, "credit: 5 is no method; give a name"),
        ("no.such.module:X", "credit: cannot import 'no.such.module'"),
        ("json:Loads", "credit: 'json' has no 'Loads'; did you mean loads"),
        ("json:loads", "credit: json:loads is no method"),
        ({"name": "json:loads", "alpha": 1}, "credit: json:loads is no dataclass, so it takes no settings"),
    ],
)
def test_a_bad_method_is_named(credit, message):
    with pytest.raises(InputError, match=message):
        build_method(credit)


def test_a_method_from_outside_needs_no_registration():
    outside = build_method({"name": "examples.add_a_method:Uncertain", "fork_nats": 1})
    assert (outside.name, outside.fork_nats) == ("uncertain", 1.0)


@pytest.mark.parametrize("word", ["010", "010.5", "00.1", "08e1", "1:30", "2026-11-25"])
def test_a_number_that_yaml_may_not_mean_stays_text(word):
    assert parse_word(word) == word


@pytest.mark.parametrize(
    ("dataset", "columns", "message"),
    [
        ("rows.jsonl", {}, "no column 'prompt', only question, gold; name yours with"),
        (
            "rows.jsonl",
            {"prompt": "qestion"},
            r"columns.prompt: .*no column 'qestion'; did you mean question?",
        ),
        (
            "rows.jsonl",
            {"prompt": "question", "gold": "question"},
            r"columns.gold: .* has a column of that name already",
        ),
        ("none.jsonl", {}, r"none\.jsonl does not exist"),
        ("nothing", {}, "cannot be loaded: "),
        ("no/such-set", {}, "'no/such-set' cannot be loaded: "),
    ],
)
def test_missing_columns_files_and_names_are_said(tmp_path, monkeypatch, dataset, columns, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "gold": "2"}')
    with pytest.raises(InputError, match=message):
        load_rows(dataset, columns=columns, chat=True)


def test_rewards_come_by_name_or_path():
    assert load_reward("arena")(["x"], ["1"]) == [0.0]
    assert load_reward("engines.tiny:vowels")(["aei"]) == [3.0]
    assert callable(load_reward("think_format_reward"))
    with pytest.raises(InputError, match="no reward 'acuracy_reward'; did you mean accuracy_reward"):
        load_reward("acuracy_reward")
    with pytest.raises(InputError, match=r"reward: engines.tiny:SPECIALS is list, not a function"):
        load_reward("engines.tiny:SPECIALS")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", *BASE, "--credit", "gaer"], "gear: credit: no method 'gaer'; did you mean gear?"),
        (["train", *BASE, "--dataset", "bad.jsonl"], "gear: bad.jsonl, line 1: Expecting"),
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
    ],
)
def test_bad_input_is_one_line_without_a_traceback(tmp_path, words, message):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"\n{"prompt": \n')
    (tmp_path / "plain.jsonl").write_text("\n".join(json.dumps({"prompt": f"{i}"}) for i in range(9)))
    done = commands.gear(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1, done.stderr


def test_methods_as_json():
    found = {row["name"]: row for row in json.loads(commands.gear("methods", "--json").stdout)}
    assert list(found) == list(METHODS)
    for row in found.values():
        assert {"needs", "source", "settings", "idea", "additive", "distils"} <= row.keys()
        assert all(setting["help"] for setting in row["settings"]), row["name"]
    assert found["gear"]["needs"] == ["divergence", "student_logprob", "teacher_logprob", "student_entropy"]
    assert found["gear"]["source"] == "arXiv:2605.11853"
    alpha = next(setting for setting in found["gear"]["settings"] if setting["name"] == "alpha")
    assert (alpha["default"], alpha["type"]) == (4.0, "float")
    assert found["shuffled"]["settings"][0]["default"] == "gear"


def test_a_dry_run_prints_what_would_run():
    done = commands.gear("train", *BASE, "--learning_rate", "1e-4", "--dry-run", "--credit.alpha", "0.5")
    assert "learning_rate: 0.0001" in done.stdout
    assert "alpha=0.5" in done.stdout
    assert commands.gear("doctor").returncode == 0
