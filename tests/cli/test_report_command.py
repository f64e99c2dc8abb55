"""`gear report` makes the page of a comparison from the file of its runs alone."""

import shutil
from pathlib import Path

import pytest

from support.commands import gear

RESULTS = Path(__file__).parents[2] / "results"


def test_the_page_is_made_beside_each_file_that_is_given(tmp_path):
    files = [tmp_path / name for name in ("chain_hard.jsonl", "errands.jsonl")]
    for file in files:
        shutil.copy(RESULTS / file.name, file)
    done = gear("report", *map(str, files))
    assert done.returncode == 0, done.stderr
    for file, task in zip(files, ("chain/hard", "errands/default"), strict=True):
        page = file.with_suffix(".html").read_text(encoding="utf-8")
        assert f"Does it help? {task}" in page and "</html>" in page
        assert ("oracle are not corrected" in page) == ("errands" in task), "the first has no oracle"


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda text: text.replace('"seed":0', '"sed":0', 1), "line 2: seed: Field required; give"),
        (lambda text: "\n" + text.replace('"seed":0', '"sed":0', 1), "line 3: seed: Field required; give"),
        (lambda text: text.partition("\n")[0], "it holds no run; give"),
        (lambda text: "", "it holds no run; give"),
        (lambda text: text + "\n", None),
    ],
)
def test_a_damaged_line_is_named_and_an_empty_one_skipped(damage, fault, tmp_path):
    file = tmp_path / "chain_hard.jsonl"
    file.write_text(damage((RESULTS / file.name).read_text(encoding="utf-8")))
    done = gear("report", str(file))
    assert done.returncode == (2 if fault else 0), done.stderr
    assert not fault or f"gear: {file}: {fault}" in done.stderr, done.stderr


@pytest.mark.parametrize("state", ["{}", "[]", '{"log_history": [{"step"'])
def test_a_damaged_state_of_the_trainer_is_named(state, tmp_path):
    (tmp_path / "trainer_state.json").write_text(state)
    done = gear("report", ".", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "gear: trainer_state.json is damaged: no log_history can be read; move it away\n",
    )


def test_a_path_that_is_not_there(tmp_path):
    done = gear("report", "runs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "gear: runs does not exist\n")
