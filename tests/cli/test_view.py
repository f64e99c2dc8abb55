"""`gear view`: one file in the terminal or as a picture, several on a page."""

from pathlib import Path

import pytest

from support.commands import gear
from support.records import record


def write(file: Path, method: str) -> None:
    made = record(2, method=method, tokens=["2", "!"], credit=[0.75, 0.25], weight=[1.5, 0.5])
    file.write_text(made.to_json() + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "a.jsonl", "gear")
    write(tmp_path / "b.jsonl", "rlsd")
    good = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text(good + good.replace('["2","!"]', '["2"]'), encoding="utf-8")
    return tmp_path


def test_several_files_become_one_page_and_one_a_picture_or_text(folder):
    done = gear("view", "a.jsonl", "b.jsonl", "--html", "page.html", cwd=folder)
    assert done.returncode == 0 and "wrote page.html (2 records)" in done.stdout, done.stderr
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html") and "default-src 'none'" in page
    assert "wrote a.svg" in gear("view", "a.jsonl", "--picture", "a.svg", cwd=folder).stdout
    shown = gear("view", "a.jsonl", "--number", "0", "--prompts", cwd=folder).stdout
    assert "2⟨1.5⟩!" in shown and "prompt of the student:" in shown


def test_it_opens_on_a_completion_whose_mistake_has_the_largest_weight_and_counts_these(tmp_path):
    right = record(3, ids=[1, 2, 3])
    rows = [right, right]
    for weight in ([0.1, 0.2, 2.7], [0.6, 1.6, 0.8]):
        changes = {"ids": [1, 7, 3], "reward": 0.0, "advantage": -1.0, "credit": [-w for w in weight]}
        rows.append(record(3, weight=weight, **changes))
    lines = "".join(row.to_json() + "\n" for row in rows)
    (tmp_path / "records.jsonl").write_text(lines, encoding="utf-8")
    shown = " ".join(gear("view", ".", cwd=tmp_path).stdout.split())
    assert "first mistake: t1, weight 1.6, the largest" in shown
    said = "In 1 of 2 blamed completions whose first mistake is known, it has the largest weight."
    assert said in shown
    assert gear("view", ".", "--html", "page.html", cwd=tmp_path).returncode == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert said in page and '"first": 3' in page
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 1, "reward": 0.5}]}')
    assert gear("report", ".", cwd=tmp_path).returncode == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert said in page and "first mistake: t1, weight 1.6, the largest" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.jsonl", "b.jsonl"], "2 files: only a page shows several; add --html FILE"),
        (["a.jsonl", "c.jsonl", "--html", "page.html"], "c.jsonl does not exist"),
        (["a.jsonl", "--html", "p.html", "--picture", "p.svg"], "--html: its page has every record; leave"),
        (["a.jsonl", "--html", "page.html", "--number", "0"], "--html: its page has every record; leave"),
        (["a.jsonl", "--number", "1"], "--number: 1 is not there; a.jsonl has 1 records, from 0"),
        (["bad.jsonl"], "bad.jsonl, line 2: not a credit record, ids has 2 entries"),
        (["bad.jsonl", "--html", "page.html"], "bad.jsonl, line 2: not a credit record, ids has 2 entries"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(folder, words, message):
    done = gear("view", *words, cwd=folder)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert {path.suffix for path in folder.iterdir()} == {".jsonl"}
