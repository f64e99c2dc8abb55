"""`gear report` makes the page of a comparison from its JSON file alone."""

import shutil
from pathlib import Path

from support.commands import gear

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_is_made_beside_each_file_that_is_given(tmp_path):
    folders = [tmp_path / name for name in ("compare_chain_hard", "compare_errands")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(RESULTS / folder.name / "comparison.json", folder)
    done = gear("report", *(str(folder / "comparison.json") for folder in folders))
    assert done.returncode == 0, done.stderr
    for folder, task in zip(folders, ("chain/hard", "errands/default"), strict=True):
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert f"Does it help? {task}" in page and "</html>" in page
        assert ("oracle are not corrected" in page) == ("errands" in task), "the first has no oracle"


def test_a_path_that_is_not_there(tmp_path):
    done = gear("report", "runs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "gear: runs does not exist\n")
