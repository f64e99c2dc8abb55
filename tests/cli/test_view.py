"""gear view: one file in the terminal or as a picture, several on a page."""

from pathlib import Path

from gear_rl.records import Record
from support.commands import gear


def write(file: Path, method: str) -> None:
    record = Record(
        step=0, group=0, method=method, prompt="1+1", tokens=["2", "!"], ids=[7, 8], mask=[1, 1], turn=[0, 0],
        segment=[0, 1], reward=1.0, advantage=0.5, credit=[0.75, 0.25], weight=[1.5, 0.5],
    )  # fmt: skip
    file.write_text(record.to_json() + "\n", encoding="utf-8")


def test_several_files_become_one_page(tmp_path):
    write(tmp_path / "a.jsonl", "gear")
    write(tmp_path / "b.jsonl", "rlsd")
    done = gear("view", "a.jsonl", "b.jsonl", "--html", "page.html", cwd=tmp_path)
    assert done.returncode == 0 and "wrote page.html (2 records)" in done.stdout, done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html") and "default-src 'none'" in page


def test_without_a_page_several_files_are_refused(tmp_path):
    write(tmp_path / "a.jsonl", "gear")
    write(tmp_path / "b.jsonl", "rlsd")
    done = gear("view", "a.jsonl", "b.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "2 files: only a page shows several; add --html FILE" in done.stderr
    done = gear("view", "a.jsonl", "c.jsonl", "--html", "page.html", cwd=tmp_path)
    assert done.returncode == 2 and "c.jsonl does not exist" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_record_is_one_line(tmp_path):
    write(tmp_path / "a.jsonl", "gear")
    good = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(good + good.replace('["2","!"]', "[1,null]"), encoding="utf-8")
    for more in ([], ["--html", "page.html"], ["--picture", "a.svg"]):
        done = gear("view", "a.jsonl", *more, cwd=tmp_path)
        assert done.returncode == 2 and "a.jsonl, line 2: not a credit record, tokens is" in done.stderr
