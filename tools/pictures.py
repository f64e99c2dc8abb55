"""Draw the pictures of the pages again, from runs in ``results/runs``: ``python -m tools.pictures``.

The two drawings need nothing. The three screenshots need a Chromium on the PATH, else they stay as they are.
"""

import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gear_rl.records import read_records
from gear_rl.view.group_notes import judge_groups
from gear_rl.view.html import save_html
from gear_rl.view.picture import save_picture
from gear_rl.view.run import save_run_page
from gear_rl.view.terminal import choose

ROOT = Path(__file__).parents[1]
RUNS, DOCS = ROOT / "results" / "runs", ROOT / "docs"
ENDED = 1795824000
"""The day of the runs, 2026-11-28, which the page of a run shows; a checkout has no such time."""
SIZES = {"run": (1000, 1120), "viewer": (1280, 760), "viewer_compare": (1280, 760)}
"""Of the screenshots, in pixels."""


def unpack_runs(folder: Path) -> None:
    """Write the committed runs into a folder as they were left by their commands."""
    shutil.copytree(RUNS, folder, dirs_exist_ok=True)
    for packed in folder.rglob("*.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
    os.utime(folder / "demo" / "trainer_state.json", (ENDED, ENDED))


def draw_completions(folder: Path) -> None:
    """Draw the most instructive completion of the demo and of the agent."""
    for run, picture in (("demo", "credit"), ("errands", "agent")):
        records = judge_groups(read_records(folder / run / "records.jsonl"))
        save_picture([choose(records)], DOCS / f"{picture}.svg")


def make_pages(folder: Path) -> dict[str, str]:
    """Write the pages that are photographed; the address of each by the name of its picture."""
    records = {run: folder / run / "records.jsonl" for run in ("demo", "errands", "rlsd")}
    save_html([records["errands"]], folder / "viewer.html", title="an agent")
    save_html([records["demo"], records["rlsd"]], folder / "compare.html", title="two methods")
    return {
        "run": save_run_page(folder / "demo").as_uri(),
        "viewer": (folder / "viewer.html").as_uri(),
        "viewer_compare": (folder / "compare.html").as_uri() + "#record=0&beside",
    }


def photograph(chromium: str, address: str, picture: Path, size: tuple[int, int]) -> None:
    """Write what a browser shows at an address as a PNG file."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb")
    window = f"--window-size={size[0]},{size[1]}"
    command = [chromium, *flags, window, "--virtual-time-budget=8000", f"--screenshot={picture}", address]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Draw everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack_runs(folder)
        draw_completions(folder)
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            sys.exit("no chromium: docs/run.png, viewer.png and viewer_compare.png stay as they are")
        for picture, address in make_pages(folder).items():
            photograph(chromium, address, DOCS / f"{picture}.png", SIZES[picture])


if __name__ == "__main__":
    main()
