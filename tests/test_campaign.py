"""A few runs of the campaign, in every test run: the rest is `make campaign`."""

import json
import os
import subprocess
import sys
from pathlib import Path

from campaign.kills import RESUMED
from campaign.page import renewed

ROOT = Path(__file__).parents[1]


def test_the_page_shows_the_numbers_of_the_file_which_are_a_whole_campaign_without_faults() -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    found = json.loads((ROOT / "results" / "campaign.json").read_text("utf-8"))
    assert renewed(page, found) == page, "run make campaign"
    assert set(found) == {"writers", "kills", "early", "canary"}
    assert found["kills"]["n"] >= 100 and found["canary"]["n"] >= 10_000
    assert found["kills"]["outcomes"] == {RESUMED: found["kills"]["n"]}
    assert not any(part["faults"] for part in found.values())


def test_a_kill_and_a_second_writer_lose_nothing(tmp_path: Path) -> None:
    out = tmp_path / "campaign.json"
    words = ("--only", "kills", "--only", "writers", "--kills", "1", "--seed", "1", "--out", str(out))
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-m", "campaign", *words],
        cwd=ROOT,
        env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["kills"]["outcomes"] == {RESUMED: 1} and found["kills"]["changes_inside_writes"] > 20
    assert "FOLDER/shared" in found["writers"]["said"]
