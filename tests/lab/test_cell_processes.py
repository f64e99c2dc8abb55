"""Runs of a comparison in processes: one that fails, one that is killed, and how long they will take."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import psutil
import pytest

from gear_rl.lab.cell_processes import run_cells
from gear_rl.lab.comparison import (
    findings_of,
)
from gear_rl.lab.spec import finished_cell
from lab.test_comparison import plan_without_ceiling


def specs_of(methods, **settings):
    return plan_without_ceiling(methods, **settings).reported_specs()


PLAN = plan_without_ceiling(["crpo:style=[9]"], samples=3)
TOLD: list[float] = []
"""What the first run said after its first steps."""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A run that finishes, and one that cannot in the same process; what was finished is not run again."""
    folder = tmp_path_factory.mktemp("compare")
    specs = PLAN.reported_specs()
    rows = run_cells(specs, folder / "cells", jobs=1, estimate=TOLD.append)
    stamp = (folder / "cells" / specs[0].file).stat().st_mtime_ns
    assert run_cells(specs[:1], folder / "cells", jobs=1) == rows[:1]
    assert (folder / "cells" / specs[0].file).stat().st_mtime_ns == stamp, "a finished run was run again"
    return folder, specs, rows


def test_a_run_that_fails_is_listed_and_takes_no_other_along(comparison):
    folder, specs, rows = comparison
    assert [row.method for row in rows] == ["uniform", "crpo:style=[9]"]
    assert [row.error is None for row in rows] == [True, False]
    assert "style" in rows[1].error and "9" in rows[1].error
    cells = folder / "cells"
    assert finished_cell(specs[0], cells) is not None and finished_cell(specs[1], cells) is None
    whole = (cells / specs[0].file).read_text()
    for other in (specs_of([], steps=2, samples=3)[0], specs_of([], samples=4)[0]):
        assert other.file != specs[0].file and finished_cell(other, cells) is None, "another run"
        for changed in ("[]", whole[:100], whole):
            (cells / other.file).write_text(changed)
            assert finished_cell(other, cells) is None


def test_how_long_a_run_will_take_is_told_after_its_first_steps(comparison):
    [seconds] = TOLD
    assert seconds > 0


def test_the_findings_depend_on_the_runs_alone(comparison):
    _, _, rows = comparison
    found = findings_of(PLAN, rows, {}, command="gear compare")
    assert found == findings_of(
        PLAN, [row.model_copy(update={"seconds": 9e9}) for row in rows], {}, command="gear compare"
    )
    for score in (rows[0].before, rows[0].after):
        assert len(score.rewards) == 3 and score.value("accuracy") == pytest.approx(sum(score.rewards) / 3)


PARENT = """
import json, signal, sys, time
from pathlib import Path
if __name__ == "__mp_main__" and sys.argv[3] == "importing":
    Path(sys.argv[2], "before-importing.json").touch()
    time.sleep(600)
from gear_rl.lab.cell_processes import run_cells
from gear_rl.lab.spec import Spec
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
if __name__ == "__main__":
    run_cells([Spec(**json.loads(sys.argv[1]))], Path(sys.argv[2]), jobs=1)
"""


@pytest.mark.parametrize(
    ("how", "when"),
    [(signal.SIGKILL, "training"), (signal.SIGINT, "training"), (signal.SIGINT, "importing")],
)
def test_a_run_ends_with_the_process_that_started_it(tmp_path, how, when):
    [spec] = specs_of([], steps=1000)
    (tmp_path / "parent.py").write_text(PARENT)
    cells, scratch = tmp_path / "cells", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, tmp_path / "parent.py", json.dumps(asdict(spec)), cells, when]
    parent = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(scratch)})
    while parent.poll() is None and not [*cells.glob("before-*.json")]:
        time.sleep(0.1)  # it trains soon after
    children = psutil.Process(parent.pid).children()
    assert children
    parent.send_signal(how)
    try:
        parent.wait(timeout=30)  # two or three seconds, more on a busy machine
    finally:
        parent.kill()
    alive = psutil.wait_procs(children, timeout=5)[1]
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in alive), (
        "or ended, and nobody has asked yet"
    )
    assert not (cells / spec.file).exists()
    assert how == signal.SIGKILL or not [*scratch.glob("gear-cell*")], "temporary files are removed"
