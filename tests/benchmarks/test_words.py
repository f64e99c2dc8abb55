"""``benchmarks words``: what is kept of sampled completions, and what a marked line says."""

import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import words as experiment
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.errors import InputError
from gear_rl.experiments.marked import Marked, read_marked
from gear_rl.runs.config import load_config
from support.commands import benchmark

ROW = {
    "prompt": "Anna has 17 pens ...",
    "solution": "17 + 8 = 25. 25 - 4 = 21. The answer is 21.",
    "answer": "21",
}
WRONG = "17 + 8 = 26. 26 - 4 = 22. The answer is 22."


def kept(*texts):
    found = {"sampled": 0, "right": 0, "other_words": 0, "marked": 0, "rows": []}
    rows = [ROW] * (len(texts) // experiment.SAMPLES)
    experiment._keep_wrong(found, rows, texts, load_reward("word-problems"))
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


def test_a_line_marks_the_first_wrong_digit_and_the_results(tmp_path):
    [line] = kept(WRONG, ROW["solution"])["rows"]
    assert WRONG[line["fault"]["start"] : line["fault"]["end"]] == "6"
    assert [WRONG[d["start"] : d["end"]] for d in line["decisions"]] == ["26", "22"]
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps(line))
    run = load_config(None, ["--model", "arena", "--dataset", "arena", "--reward", "arena"])
    [one] = read_marked(file, run).marked
    assert isinstance(one, Marked) and one.other == ROW["solution"] and len(one.decisions) == 2


def test_completions_that_are_kept_are_not_sampled_again(monkeypatch, tmp_path):
    task = experiment.Words(model="arena", data="word-problems/bare", split="test", n=2, runs=tmp_path)
    task.file.write_text(json.dumps({"model": "arena"} | kept(WRONG, WRONG)))
    shown = []
    monkeypatch.setattr(
        experiment, "_scored", lambda task, methods, rows, column: shown.append((column, rows))
    )
    monkeypatch.setattr(experiment, "wrong_completions", lambda task: pytest.fail("sampled again"))
    found = experiment.words(task, {})
    assert [column for column, _ in shown] == ["solution", "answer"] and len(shown[0][1]) == 1
    assert found["use"] == "reporting" and found["sampled"] == 2 and "rows" not in found


def test_both_contexts_are_scored_side_by_side(monkeypatch, tmp_path):
    """With threads for the processes, which would load the libraries anew; what they are given can be sent."""

    def alone(task, methods, rows, column):
        assert pickle.dumps((task, methods, rows, column))
        task.say(f"{column} begins")
        both.wait(timeout=60)  # neither ends before the other has begun
        if methods:
            raise InputError(f"{column}: too few")
        return rows

    both, said = threading.Barrier(2), list[str]()
    monkeypatch.setattr(experiment, "_scored_alone", alone)
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    task = experiment.Words(
        model="arena", data="word-problems/bare", split="test", n=1, runs=tmp_path, say=said.append
    )
    task.file.write_text(json.dumps({"model": "arena"} | kept(WRONG, WRONG)))
    contexts = experiment.words(task, {}, jobs=2)["contexts"]
    rows = kept(WRONG, WRONG)["rows"]
    assert contexts == {"solution": rows, "answer": rows}
    assert set(said) == {"solution begins", "answer begins"}
    with pytest.raises(InputError, match="solution: too few"):
        experiment.words(task, {"gear": {}}, jobs=2)


def test_completions_of_another_model_are_not_taken_for_its_own(tmp_path):
    task = experiment.Words(model="runs/new", data="word-problems/bare", split="test", n=2, runs=tmp_path)
    task.file.write_text(json.dumps({"model": "runs/old"} | kept(WRONG, WRONG)))
    with pytest.raises(InputError, match=r"--runs: .* has completions of runs/old; give another folder"):
        experiment.words(task, {})


def test_a_split_that_is_none():
    done = benchmark("words", "--model", "arena", "--split", "dev")
    assert done.returncode == 2 and "--split: 'dev'; give test, to report" in done.stderr
