"""gear score: where credit lands, on planted faults and on a user's marked ones."""

import json
from pathlib import Path

import pytest

from engines import tiny
from gear_rl.arena.model import load
from gear_rl.arena.task import get_task
from gear_rl.cli.score import score_table, score_verdict
from gear_rl.lab.marked import marked_material
from gear_rl.lab.material import arena_material, rollouts_of
from gear_rl.lab.scoring import (
    ENTROPY_ONSETS,
    UNINFORMED,
    credits_of,
    score,
)
from gear_rl.runs.machine import quiet_libraries
from lab.test_marked import written
from support.commands import gear, untouched

LONG = " plus 2 is 3" * 120
ROWS = [
    {"prompt": "1 plus 1", "answer": 2, "completion": "1 plus 1 is 3", "fault": {"text": " 3"}},
    {"prompt": "x", "answer": 2, "completion": "1 plus", "fault": {"start": 6, "end": 7}},
    {
        "prompt": [{"role": "user", "content": "2 plus 2"}],
        "solution": "2 plus 2 is 4",
        "completion": [{"role": "assistant", "content": "\U0001f642 is 5"}],
        "correct": "it is 4",
        "fault": {"start": 0, "end": 1},
    },
    {"prompt": "x", "answer": 2, "completion": LONG * 4, "fault": {"start": 6, "end": 7}},
    {"prompt": "y", "answer": 5, "completion": LONG, "fault": {"start": 1430, "end": 1440}},
]


@pytest.fixture
def quiet():
    with untouched(None):
        quiet_libraries()
        yield


def planted(chosen, tokenizer):
    """The task's cases as lines of a user's file."""
    for case in chosen:
        [wrong], [right] = case.faulty, case.right
        start, end = (len(tokenizer.decode(wrong[:place])) for place in (case.fault.start, case.fault.stop))
        said, better = (tokenizer.decode(ids[:-1]) for ids in (wrong, right))
        yield {**case.row, "completion": said, "correct": better, "fault": {"start": start, "end": end}}


def test_planted_faults_from_a_file_give_the_numbers_of_the_task(tmp_path, quiet):
    """Tokens, prompts, rewards and all that follows are those of the task."""
    _, tokenizer = load()
    file = written(tmp_path, *planted(get_task("chain").cases(tokenizer, "hard", 7), tokenizer))
    named = {"by_entropy": {"name": "gear", "onset_signal": "entropy"}, "gear": {"name": "gear"}}
    ours = score(named, marked_material(file, "arena"))
    theirs = score(named, arena_material(tier="hard", n=7))
    assert ours["n"] == 7 and ours["other_completion"] == {"correct": 7}
    rows, by_role = theirs["methods"], {}
    for name, row in rows.items():
        by_role.setdefault(row["role"], set()).add(name)
    assert ours["methods"].keys() == rows.keys()
    assert by_role == {
        "method": {"gear", "by_entropy"},
        "floor": {"uniform", "shuffled", "random_onsets"},
        "control": {UNINFORMED, ENTROPY_ONSETS, "surprise", "entropy", "log_ratio", "divergence"},
        "ceiling": {"oracle"},
    }
    # Of decisions the task alone knows. It draws the uninformed teacher's problem; a file has its next line.
    known = {"auc_choices", "auc_choices_interval", "with_choices"}
    for name in rows.keys() - {UNINFORMED}:
        mine, its = ours["methods"][name], rows[name]
        assert {k: mine[k] for k in mine.keys() - known} == {k: its[k] for k in mine.keys() - known}, name
        assert mine["with_choices"] == 0 and its["with_choices"] == 7 - its["left_out"]["fallback"]
    assert rows["gear"]["auc"] not in (0.5, 1.0)
    assert rows[ENTROPY_ONSETS] | {"role": "method"} == rows["by_entropy"] != rows["gear"]
    assert rows[UNINFORMED]["auc"] < rows["gear"]["auc"]
    assert (rows["uniform"]["auc"], rows["uniform"]["lift"]) == (0.5, 1.0)
    assert [rows["oracle"][measure] for measure in ("auc", "share", "rank")] == [1.0, 1.0, 1.0]
    # The shipped student is unsure where it errs, and its teacher is not.
    assert rows["entropy"]["auc"] > 0.8 and rows["log_ratio"]["auc"] > 0.8
    assert rows["surprise"]["auc"] > 0.95, "it did not draw the fault"
    said = "The faults are planted: the student did not draw them"
    assert said in score_verdict(theirs) and said not in score_verdict(ours)
    assert score_table(theirs).row_count == len(rows) + 3  # the headings of floors, controls and ceiling


def test_a_users_own_completions(tiny_model, tmp_path):
    """A model of two thousand weights and five lines, of which two cannot be used."""
    written(tmp_path, *ROWS)
    words = ["--data", "mine.jsonl", "--model", tiny_model, "--methods", "gear,rlsd,rlcsd"]
    words += ["--max-tokens", "900", "--json"]
    done = gear("score", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["data"], found["model"], found["n"]) == ("mine.jsonl", Path(tiny_model).name, 3)
    assert found["other_completion"] == {"answer": 2, "correct": 1}
    assert [line["line"] for line in found["set_aside"]] == [2, 4]
    assert 'line 2: fault: {"start": 6, "end": 7} marks nothing of 6 characters' in done.stderr
    assert "line 4: completion: 1920 tokens are more than --max-tokens 900; set aside" in done.stderr
    assert "2 of 5 lines are set aside" in done.stderr
    assert all(row["n"] == 3 for name, row in found["methods"].items() if name != "rlcsd")
    assert found["methods"]["oracle"]["auc"] == 1.0 and found["methods"]["uniform"]["auc"] == 0.5
    # A group of two has no other failure to contrast with, so RLCSD leaves its completions as they are.
    row = found["methods"]["rlcsd"]
    assert (row["n"], row["auc"], row["left_out"]["fallback"]) == (0, None, 3)


def test_the_credit_step_sees_the_completion_the_fault_and_a_negative_advantage(tiny_model, tmp_path, quiet):
    tokenizer, same = tiny.tokenizer(), ROWS[0] | {"prompt": "3 plus 3"}
    material = marked_material(written(tmp_path, *ROWS, same), tiny_model, max_tokens=900)
    cases, blind = ([pair.case for pair in pairs] for pairs in (material.pairs, material.blind))
    batch = rollouts_of(material.pairs, material.rewards(material.pairs, {}), material.engine)
    kept = credits_of({"gear": {"name": "gear"}, UNINFORMED: {"name": "gear"}}, material)
    texts = ["1 plus 1 is 3", "\U0001f642 is 5", LONG, "1 plus 1 is 3"]
    faults = [" 3", "\U0001f642", LONG[1430:], " 3"]
    for i, (case, found, text, fault) in enumerate(zip(cases, kept["gear"], texts, faults, strict=True)):
        [ids] = case.faulty
        assert tokenizer.decode(ids) == text + "<|im_end|>"
        assert tokenizer.decode(ids[case.fault.start : case.fault.stop]).endswith(fault)
        assert batch.completions.ids[2 * i][batch.completions.mask[2 * i]].tolist() == ids
        assert batch.rewards[2 * i] == 0.0 and batch.messages[2 * i][0]["content"] == text
        assert float(batch.advantage_B[2 * i]) == pytest.approx(-(0.5**0.5), abs=1e-3)
        assert found.trained == [True] * len(ids) and not found.fallback
        assert sum(found.credit) / len(ids) == pytest.approx(-(0.5**0.5), abs=1e-3), "mean weight 1"
    shown = tokenizer.decode(batch.student.ids_BP[2])
    assert "<|im_start|>user\n2 plus 2<|im_end|>" in shown, "the model's own chat template"
    assert tokenizer.decode(cases[1].right[0]) == "it is 4<|im_end|>"
    assert len(cases[0].fault) == 1 and len(cases[1].fault) == 4, "four bytes, four tokens"
    # The uninformed teacher sees the next line's context; after the last, the next one with another text.
    assert [case.row["privileged_context"] for case in cases] == ["2", "2 plus 2 is 4", "5", "2"]
    assert [case.row["privileged_context"] for case in blind] == ["2 plus 2 is 4", "5", "2", "2 plus 2 is 4"]
    for one, other in zip(kept["gear"], kept[UNINFORMED], strict=True):
        entropy = pytest.approx(other.signals["student_entropy"], abs=1e-3)
        assert one.case.faulty == other.case.faulty and one.signals["student_entropy"] == entropy
        assert one.signals["divergence"] != other.signals["divergence"]


MARKED = ["--data", "mine.jsonl", "--model", "arena"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tier", "harder"], "no tier 'harder'; did you mean hard?"),
        (["--data", "mine.jsonl", "--tier", "easy"], "--tier: is for the arena's tasks"),
        (["--data", "mine.jsonl"], "--model: missing"),
        ([*MARKED, "--credit.alpha", "1"], "--credit.alpha: not possible"),
        ([*MARKED, "--methods", "crpo"], "gear: --methods: crpo: style: no reward function 1"),
        (["--methods", "gear,oracle"], "--methods: 'oracle' is the ceiling of every score already"),
        (["--methods", "gear=rlsd"], "'gear' is the name of a control; choose another for rlsd"),
        (["--methods", "surprise=gear"], "'surprise' is the name of a control; choose another for gear"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path):
    done = gear("score", *words, cwd=written(tmp_path, ROWS[0]).parent)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.jsonl"]
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("a[/b]=gear", "a[/b] ranks the fault above"),
        ("mine[v2]=rlcsd", "No method gave credit that can be ranked: every completion was left out."),
        ("uniform", "Controls alone were scored; name a method beside them, such as gear."),
    ],
)
def test_names_are_shown_as_they_are_and_controls_are_no_methods(methods, said, tmp_path):
    written(tmp_path, *ROWS[:2])
    done = gear("score", *MARKED, "--methods", methods, cwd=tmp_path)
    assert done.returncode == 0 and said in done.stdout, done.stderr
    assert methods.partition("=")[0] in done.stdout
