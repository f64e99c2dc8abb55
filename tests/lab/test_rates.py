"""Every method at its own best rate: the search, what it keeps out of reports, and going on after a kill."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.arena import split
from gear_rl.lab import compare
from gear_rl.lab.compare import MOST_STEPS, best, compared, grid, next_rate, plan_of, run_plan
from gear_rl.lab.training import Spec, finished, run_cell
from support.commands import untouched

SMALL = {"task": "codebook", "tier": "easy", "seeds": 1, "steps": 1, "n_eval": 4, "samples": 1}


@given(peak=st.floats(-8, 8), count=st.integers(2, 6))
def test_the_search_ends_with_the_best_inside_or_at_the_limit(peak: float, count: int) -> None:
    """On a curve with one top, wherever it is, in halvings and doublings of the task's own rate."""
    first = grid(4e-4, count)
    curve = {rate: -abs(n - (count - 1) // 2 - peak) for n, rate in enumerate(first)}
    for _ in range(2 * MOST_STEPS + 1):
        beyond = next_rate(curve, first)
        if beyond is None:
            break
        assert beyond not in curve
        places = {rate: round(n) for n, rate in enumerate(sorted([*curve, beyond]))}
        offset = next(n for n, rate in enumerate(sorted([*curve, beyond])) if rate == first[0])
        curve[beyond] = -abs(places[beyond] - offset - (count - 1) // 2 - peak)
    else:
        pytest.fail("the search does not end")
    chosen = best(curve)
    at_edge = chosen in (min(curve), max(curve))
    assert at_edge == (len(curve) == count + MOST_STEPS and next_rate(curve, first) is None and at_edge)
    assert len(curve) <= count + MOST_STEPS


def test_one_rate_is_a_choice_and_stays() -> None:
    assert grid(3e-4, 1) == [3e-4] and next_rate({3e-4: 0.5}, [3e-4]) is None


def test_what_tunes_is_never_reported() -> None:
    plan = plan_of(["gear"], task="codebook", tier="default", seeds=10, n_eval=768)
    tuned = plan.tuning("gear", grid(plan.rate, 4))
    shown = plan.reported()
    assert not {spec.seed for spec in tuned} & {spec.seed for spec in shown}
    problems = [set(range(s.first, s.first + s.n_eval)) for s in (tuned[0], shown[0])]
    assert not problems[0] & problems[1] and problems[0] | problems[1] == set(plan.held_out)
    assert {spec.rate for spec in tuned} == {2e-4, 4e-4, 8e-4, 1.6e-3}
    assert len({spec.file for spec in (*tuned, *shown)}) == len(tuned) + len(shown)


def test_a_method_may_bring_another_teacher() -> None:
    """Settings of the engine stand beside the method's own, and are no part of it."""
    plan = plan_of(["live=gear:teacher_model_kind=live,alpha=2", "gear"], **SMALL)
    specs = {spec.name: spec for spec in plan.reported()}
    assert specs["gear"].engine == {"teacher_model_kind": "base"}
    assert specs["live"].engine == {"teacher_model_kind": "live"}
    assert specs["live"].credit == {"name": "gear", "alpha": 2}


def test_every_tier_that_chose_is_one() -> None:
    assert split.use_of("errands", "default") == "reporting"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tuning seed, four problems and a rate more at most: the cells carry them to the workers."""
    monkeypatch.setattr(compare, "MOST_STEPS", 1)
    monkeypatch.setattr(compare, "TUNING_SEEDS", (1000,))
    monkeypatch.setattr(compare, "tuning", lambda held_out: held_out[-4:])


def in_this_process(specs: list[Spec], folder: Path, **_: object) -> list[dict[str, Any]]:
    return [finished(spec, folder) or run_cell(spec, folder) for spec in specs]


@pytest.mark.usefixtures("few", "unchecked")
def test_a_killed_comparison_goes_on_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = plan_of([], rates=2, **SMALL)

    def found(folder: Path, **options) -> str:
        rows, tuned = run_plan(plan, folder, jobs=1, **options)
        return json.dumps(compared(plan, rows, tuned, command=""))

    ran: list[str] = []

    def killed(cell: dict) -> None:
        ran.append(cell["method"])
        if len(ran) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found(tmp_path / "a", each=killed)
    [torn, *_] = sorted((tmp_path / "a").glob("uniform-*.json"))
    torn.write_bytes(torn.read_bytes()[:100])
    expected: list[tuple[int, int]] = []
    resumed = found(
        tmp_path / "a", each=lambda cell: ran.append(cell["method"]), expect=lambda *n: expected.append(n)
    )
    assert expected[0][0] < expected[0][1], "what was finished is not run again"
    with monkeypatch.context() as here, untouched(None):
        here.setattr(compare, "run_cells", in_this_process)
        assert resumed == found(tmp_path / "b"), "one that was never interrupted"
    document = json.loads(resumed)
    assert document["comparisons"][0]["ceiling"] == "oracle" and document["settings"]["use"] == "choosing"
    tuned = document["settings"]["rates"]
    assert set(tuned) == {"uniform", "oracle"}
    for method, one in tuned.items():
        assert one["tried"][f"{one['rate']:g}"] == max(one["tried"].values())
        shown = [cell["rate"] for cell in document["comparisons"][0]["cells"] if cell["method"] == method]
        assert shown == [one["rate"]]


@pytest.mark.usefixtures("few")
def test_a_rate_whose_runs_fail_is_the_worst(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = replace(plan_of([], rates=3, **SMALL), ceiling=None)

    def ran(specs, folder, **_):
        ends = {2e-4: 0.3, 4e-4: 0.5, 8e-4: None}
        return [
            {"method": s.name, "rate": s.rate, "accuracy_after": ends.get(s.rate, 0.1)} for s in specs
        ]  # fmt: skip

    monkeypatch.setattr(compare, "run_cells", ran)
    _, tuned = run_plan(plan, tmp_path, jobs=1)
    assert tuned["uniform"] == {
        "rate": 4e-4,
        "at_edge": False,
        "tried": {"0.0002": 0.3, "0.0004": 0.5, "0.0008": 0.0},
    }
