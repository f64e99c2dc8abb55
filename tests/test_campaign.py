"""A few runs of the campaign, in every test run: the rest is `make campaign`."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_two_kills_and_a_second_writer_lose_nothing(tmp_path: Path) -> None:
    out = tmp_path / "campaign.json"
    words = ("--only", "kills", "--only", "writers", "--kills", "2", "--seed", "1", "--out", str(out))
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
    assert sum(found["kills"]["outcomes"].values()) == 2 and found["kills"]["changes_of_files"] > 20
    assert "FOLDER/shared" in found["writers"]["said"]
    assert not [*tmp_path.glob("gear-campaign-*")]
