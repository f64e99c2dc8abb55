"""A few runs of the campaign, in every test run: the rest is `make campaign`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.kills import RESUMED
from campaign.page import renewed, table

ROOT = Path(__file__).parents[1]


def test_the_page_shows_the_numbers_of_the_file_which_are_a_whole_campaign_without_faults() -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    text = (ROOT / "docs" / "results" / "campaign.json").read_text("utf-8")
    found = json.loads(text)
    assert renewed(page, found) == page, "run make campaign"
    assert set(found) == {"writers", "corruption", "kills", "early", "canary"}
    assert found["kills"]["n"] >= 100 and found["canary"]["n"] >= 10_000
    assert found["kills"]["outcomes"] == {RESUMED: found["kills"]["n"]}
    assert not any(part["faults"] for part in found.values())
    assert not any(f"{root}/" in text for root in ("/work", "/home", "/root", "/tmp"))


def test_the_table_adds_up_and_leaves_nothing_out() -> None:
    outcomes = {"a.json: passed over": 1200, "a.json: resumed": 1, "b.pt: passed over": 34}
    found = {"corruption": {"n": 1235, "outcomes": outcomes, "faults": ["a traceback"]}}
    [line] = table(found).splitlines()[2:]
    assert line.endswith("one bit flipped | 1,235 | passed over 1,234, resumed 1 | 1 |")
    with pytest.raises(ValueError, match="no <!-- campaign -->"):
        renewed("a page", found)


def test_a_kill_and_a_second_writer_lose_nothing(tmp_path: Path) -> None:
    out = tmp_path / "campaign.json"
    words = ("--only", "kills", "--only", "writers", "--kills", "1", "--seed", "1", "--out", str(out))
    done = subprocess.run(
        [sys.executable, "-m", "campaign", *words],
        cwd=ROOT,
        env={
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["kills"]["outcomes"] == {RESUMED: 1} and found["kills"]["changes_inside_writes"] > 20
    assert "FOLDER/shared" in found["writers"]["said"]
    assert not [*tmp_path.glob("gear-campaign-*")]
