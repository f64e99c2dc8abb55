"""gear compare on the arena: methods and plans, the search for rates, and small runs that are interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena.task import Task
from gear_rl.errors import InputError
from gear_rl.lab import comparison as compare
from gear_rl.lab.cells import Cell
from gear_rl.lab.comparison import (
    MOST_WIDENINGS,
    best_rate,
    findings_of,
    next_rate,
    plan_of,
    rate_grid,
    run_plan,
)
from gear_rl.lab.lineup import line_up, parse_method, parse_methods, split_methods
from gear_rl.lab.training import Spec, _failed_cell, _measure_once, finished_cell, run_cell, run_cells
from gear_rl.method_builder import build_method
from gear_rl.methods import Gear, RandomOnsets
from gear_rl.runs.arena import sampling_seed
from lab.test_verdict import cell
from support.commands import gear, untouched

SMALL = {"task": "chain", "tier": "easy", "n_eval": 8, "rates": 1, "seeds": 1, "steps": 1}


def plan_without_ceiling(methods, **settings):
    """The ceiling's own runs are test_oracle.py's."""
    plan = plan_of(methods, **{**SMALL, **settings})
    named = {name: credit for name, credit in plan.methods.items() if name != plan.ceiling}
    return replace(plan, methods=named, ceiling=None)


def specs_of(methods, **settings):
    return plan_without_ceiling(methods, **settings).reported_specs()


# --- methods and plans ---------------------------------------------------------------------------------------


def test_a_list_of_methods_is_split_between_methods():
    assert parse_method("own=my.module:Method") == ("own", {"name": "my.module:Method"})
    assert parse_method("own=gear:alpha=0.5") == ("own", {"name": "gear", "alpha": 0.5})
    blind = "blind=random_onsets:of.aligned=one,of.clip=[0.5, 2],seed=3"
    assert split_methods(f"{blind},rlsd") == [blind, "rlsd"]
    _, engine, own, _ = line_up(["gear*stare:teacher_model_kind=live,rollouts=24"])
    assert engine["gear*stare:teacher_model_kind=live,rollouts=24"]["teacher_model_kind"] == "live"
    assert own["gear*stare:teacher_model_kind=live,rollouts=24"] == {"rollouts": 24}
    placebo = build_method(parse_method(blind)[1])
    assert placebo == RandomOnsets(of=Gear(aligned="one", clip=(0.5, 2.0)), seed=3)
    with pytest.raises(InputError, match=r"'own' stands for .* rename one"):
        parse_methods(["own=rlsd:", "own=gear:"])


def test_every_method_meets_every_seed_and_rates_are_tuned_elsewhere():
    plan = plan_of(["gear"], task="codebook", tier="default", seeds=10, n_eval=768)
    tuned, shown = plan.tuning_specs("gear", rate_grid(plan.rate, 4)), plan.reported_specs()
    assert [*plan.methods] == ["uniform", "oracle", "gear"] and plan.ceiling == "oracle"
    assert [(s.name, s.seed) for s in shown] == [(m, n) for n in range(10) for m in plan.methods]
    assert {s.steps for s in shown} == {40} and {s.samples for s in shown} == {4}
    assert not {s.seed for s in tuned} & {s.seed for s in shown}
    problems = [set(range(s.first, s.first + s.n_eval)) for s in (tuned[0], shown[0])]
    assert not problems[0] & problems[1] and problems[0] | problems[1] == set(plan.held_out)
    assert {s.rate for s in tuned} == {2e-4, 4e-4, 8e-4, 1.6e-3}
    assert len({s.file for s in (*tuned, *shown)}) == len(tuned) + len(shown)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "gaer"], "no method 'gaer'; did you mean gear?"),
        (["--methods", "gear:alpha"], "'alpha' in 'gear:alpha' is no setting"),
        (["--seeds", "0"], "--seeds: 0"),
        (["--task", "errands", "--methods", "sft"], "sft: an agent's answers cannot be imitated"),
        (["--rollouts", "12"], "--rollouts: 12 per step; give a multiple of the 8 of a group"),
        (["--methods", "more=uniform:rollouts=12"], "more: rollouts: 12; give a multiple of 8"),
        (["--n-eval", "769"], "--n-eval: 769; there are 768 held-out problems to report on"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path):
    done = gear("compare", *words, cwd=tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


# --- the search for rates ------------------------------------------------------------------------------------


@given(peak=st.integers(-8, 8), count=st.integers(2, 6))
def test_the_search_ends_with_the_best_inside_or_at_the_limit(peak: int, count: int) -> None:
    """On a curve with one top, wherever it is, in halvings and doublings of the task's own rate."""
    first = rate_grid(4e-4, count)
    place = {compare._round_rate(4e-4 * 2.0**n): n for n in range(-12, 13)}
    curve = {rate: -abs(place[rate] - peak) for rate in first}
    while (beyond := next_rate(curve, first)) is not None:
        assert beyond not in curve
        curve[beyond] = -abs(place[beyond] - peak)
    low, high = place[first[0]] - MOST_WIDENINGS, place[first[-1]] + MOST_WIDENINGS
    assert place[best_rate(curve)] == min(max(peak, low), high)
    assert len(curve) <= count + MOST_WIDENINGS
    assert next_rate({3e-4: 0.5}, rate_grid(3e-4, 1)) is None


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tuning seed, and a rate more at most."""
    monkeypatch.setattr(compare, "MOST_WIDENINGS", 1)
    monkeypatch.setattr(compare, "TUNING_SEEDS", (1000,))


def test_a_rate_whose_runs_fail_is_the_worst(few, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ran(specs, folder, **_):
        ends = {2e-4: 0.3, 4e-4: 0.5, 8e-4: None}
        return [cell(s.name, s.seed, ends.get(s.rate, 0.1), rate=s.rate) for s in specs]

    monkeypatch.setattr(compare, "run_cells", ran)
    plan = plan_without_ceiling([], rates=3, task="codebook")
    _, tuned = run_plan(plan, tmp_path, jobs=1)
    tried = {"0.0002": 0.3, "0.0004": 0.5, "0.0008": None}
    assert tuned["uniform"] == {"rate": 4e-4, "at_edge": False, "tried": tried}


def test_a_process_that_dies_first_fails_its_own_run_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def died(specs, folder, *, each, **_):
        rows = [_failed_cell(spec, "its process died: killed") for spec in specs]
        for row in rows:
            each(row)
        return rows

    monkeypatch.setattr(compare, "run_cells", died)
    done = gear("compare", "--seeds", "1", "--rates", "1", "--out", str(tmp_path), "--json")
    assert done.returncode == 1 and "4 runs failed; run the same command again" in done.stderr, done.stderr
    found = json.loads(done.stdout)["comparison"]
    assert len(found["failed"]) == 4 and "its process died: killed" in str(found["failed"])


def in_this_process(specs: list[Spec], folder: Path, **_: object) -> list[Cell]:
    return [finished_cell(spec, folder) or run_cell(spec, folder) for spec in specs]


@pytest.mark.usefixtures("few", "unchecked")
def test_a_killed_comparison_goes_on_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = replace(plan_of([], **SMALL | {"task": "codebook", "rates": 2, "n_eval": 4, "samples": 1}))
    plan = replace(plan, held_out=plan.held_out[:16])

    def found(folder: Path, **options) -> str:
        rows, tuned = run_plan(plan, folder, jobs=1, **options)
        return findings_of(plan, rows, tuned, command="").model_dump_json()

    ran: list[str] = []

    def killed(cell: Cell) -> None:
        ran.append(cell.method)
        if len(ran) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found(tmp_path / "a", each=killed)
    [torn, *_] = sorted((tmp_path / "a").glob("uniform-*.json"))
    torn.write_bytes(torn.read_bytes()[:100])
    expected: list[tuple[int, int]] = []
    with monkeypatch.context() as here, untouched(None):  # a process for each part would import for seconds
        here.setattr(compare, "run_cells", in_this_process)
        resumed = found(tmp_path / "a", expect=lambda *n: expected.append(n))
        assert expected[0][0] < expected[0][1], "what was finished is not run again"
        assert resumed == found(tmp_path / "b"), "one that was never interrupted"
    document = json.loads(resumed)
    comparison, tuned = document["comparison"], document["settings"]["rates"]
    assert comparison["ceiling"] == "oracle" and document["settings"]["use"] == "choosing"
    assert set(tuned) == {"uniform", "oracle"}
    for method, one in tuned.items():
        assert one["tried"][f"{one['rate']:g}"] == max(one["tried"].values())
        assert [c["rate"] for c in comparison["cells"] if c["method"] == method] == [one["rate"]]


# --- real runs -----------------------------------------------------------------------------------------------

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


def test_too_few_seeds_are_said_before_the_first_run(monkeypatch, tmp_path):
    def asked(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run_cells", asked)
    done = gear("compare", "--seeds", "2", "--out", str(tmp_path))
    assert done.stderr.startswith("--seeds: 2; these runs will end without a verdict, which needs 3 or more")


def test_a_damaged_evaluation_is_made_again(tmp_path):
    file = tmp_path / "before.json"
    file.write_text("{}")
    one, other = ({"rewards": [[reward]], "beside": {}} for reward in (0.5, 0.0))
    assert _measure_once(file, lambda: one) == one == _measure_once(file, lambda: other)


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
from gear_rl.lab.training import Spec, run_cells
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


def test_seeds_with_the_same_weights_draw_different_answers(tmp_path, monkeypatch):
    """Else the luck of one draw would be in all of them alike, and in no interval."""
    drawn: list[tuple[int, tuple[float, ...]]] = []

    def solve(task, trainer, problems, *, seed, solve=Task.solve):
        rewards = solve(task, trainer, problems, seed=seed)
        drawn.append((seed, tuple(rewards)))
        return rewards

    monkeypatch.setattr(Task, "solve", solve)
    first, second = specs_of([], seeds=2, n_eval=64, samples=2)
    with untouched(None):
        for spec, folder in ((first, "a"), (second, "a"), (first, "b")):
            row = run_cell(replace(spec, between=False), tmp_path / folder)
            assert row.error is None, row.error
    assert [seed for seed, _ in drawn[:4]] == [sampling_seed(0, 0), sampling_seed(0, 1)] * 2
    before = [drawn[n][1] for n in (0, 1, 4, 5)]
    assert len({*before}) == 4, "neither two seeds nor two samples of a seed are alike"
    assert drawn[:4] == drawn[8:], "the same seed draws the same answers again"
