"""``benchmarks words``: what is kept of sampled completions, and what a marked line says."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks import word_problems
from benchmarks import words as experiment
from gear_rl.errors import InputError
from gear_rl.lab.marked import marked_material

ROW = {
    "prompt": "Anna has 17 pens ...",
    "solution": "17 + 8 = 25. 25 - 4 = 21. The answer is 21.",
    "answer": "21",
}
WRONG = "17 + 8 = 26. 26 - 4 = 22. The answer is 22."


def kept(*texts):
    found = {"sampled": 0, "right": 0, "other_words": 0, "marked": 0, "rows": []}
    rows = [ROW] * (len(texts) // experiment.SAMPLES)
    experiment._keep_wrong(found, rows, texts, word_problems.reward)
    return found


def test_one_wrong_completion_of_a_problem_is_kept_and_everything_counted():
    later = "17 + 8 = 25. 25 - 4 = 20. The answer is 20."
    found = kept(
        ROW["solution"], WRONG, WRONG, later, "It is 22.", "17 plus 8 is 25, so 21. The answer is 21."
    )
    assert {name: found[name] for name in ("sampled", "right", "other_words", "marked")} == {
        "sampled": 6, "right": 2, "other_words": 1, "marked": 3,
    }  # fmt: skip
    assert [row["completion"] for row in found["rows"]] == [WRONG, WRONG]  # not two of the second problem


@pytest.mark.parametrize("change", ["length", "weights"])
def test_completions_of_another_length_or_model_are_refused(change, tmp_path, monkeypatch):
    sampled = list[experiment.Words]()

    def wrong_completions(task, rows):
        sampled.append(task)
        return kept(WRONG, WRONG)

    monkeypatch.setattr(experiment, "wrong_completions", wrong_completions)
    monkeypatch.setattr(experiment, "falsified_context", lambda task: {})
    monkeypatch.setattr(experiment, "_scored", lambda *_: {})
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("first")
    data, model = "benchmarks.word_problems:bare", str(tmp_path / "model")
    task = experiment.Words(model=model, data=data, split="test", n=1, runs=tmp_path / "runs")
    for _ in range(2):
        experiment.words(task, {})
    assert len(sampled) == 1
    if change == "weights":
        (tmp_path / "model" / "weights").write_text("other")
    with pytest.raises(InputError, match="completions of another length, model or data; give another folder"):
        experiment.words(replace(task, length=9 if change == "length" else task.length), {})


def test_a_line_marks_the_first_wrong_digit_and_the_results(tmp_path):
    [line] = kept(WRONG, ROW["solution"])["rows"]
    assert WRONG[line["fault"]["start"] : line["fault"]["end"]] == "6"
    assert [WRONG[d["start"] : d["end"]] for d in line["decisions"]] == ["26", "22"]
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps(line))
    [pair] = marked_material(file, "arena").pairs
    assert pair.messages[1][0]["content"] == ROW["solution"] and any(pair.case.choices)


@pytest.mark.parametrize(
    ("written", "right", "place"),
    [
        ("= 43.", "= 42.", 3),
        ("= 420.", "= 42.", 4),
        ("= 42.", "= 420.", 4),  # the full stop, where a 0 is due
        ("= 42.", "= 42.", None),
        ("= -42.", "= 42.", None),
        ("= 42", "= 420", None),  # only an end token stands there
        (" = 43. ", "= 42.", 4),
    ],
)
def test_the_character_that_leaves_the_right_number_is_marked(written, right, place):
    marked = None if place is None else (place, place + 1)
    assert experiment.first_wrong_number(written, right) == marked


def test_one_digit_of_one_result_is_falsified():
    for seed, row in enumerate(word_problems.rows("test", num=200)):
        right, shown = row["solution"], experiment.falsified(row["solution"], seed)
        [place] = [i for i, (a, b) in enumerate(zip(right, shown, strict=True)) if a != b]
        assert shown[place].isdigit() and any(a <= place < z for a, z in experiment.results(right))
        assert not re.search(r"= 0\d", shown) and shown == experiment.falsified(right, seed)
