"""gear compare on the arena: methods and plans, the search for rates, and small runs that are interrupted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from gear_rl.lab.spec import Spec, failed_cell, finished_cell
from gear_rl.lab.training import run_cell
from lab.test_verdict import cell
from support.commands import gear, untouched

SMALL = {"task": "chain", "tier": "easy", "n_eval": 8, "rates": 1, "seeds": 1, "steps": 1}


def plan_without_ceiling(methods, **settings):
    """The ceiling's own runs are test_oracle.py's."""
    plan = plan_of(methods, **{**SMALL, **settings})
    named = {name: credit for name, credit in plan.methods.items() if name != plan.ceiling}
    return replace(plan, methods=named, ceiling=None)


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
        (["--rates", "3000"], "--rates: 3000; give 16 or fewer"),
        (["--methods", "grail:answer_pattern=("], "--methods: grail:answer_pattern=(: answer_pattern"),
        (["--n-eval", "769"], "--n-eval: 769; there are 768 held-out problems to report on"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path):
    done = gear("compare", *words, cwd=tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


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
    assert next_rate({3e-4: 0.5, 6e-4: 0.5}, rate_grid(3e-4, 2)) is None, "nothing is better at the edge"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tuning seed, and a rate more at most."""
    monkeypatch.setattr(compare, "MOST_WIDENINGS", 1)
    monkeypatch.setattr(compare, "TUNING_SEEDS", (1000,))


@pytest.mark.parametrize("ends", [{2e-4: 0.3, 4e-4: 0.5, 8e-4: None}, {2e-4: 1.0, 4e-4: 1.0, 8e-4: 1.0}])
def test_a_rate_whose_runs_fail_is_the_worst(
    few, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: dict[float, float | None]
) -> None:
    """And of equal ones the run's own is taken, with none beyond."""

    def ran(specs, folder, **_):
        return [cell(s.name, s.seed, ends.get(s.rate, 0.1), rate=s.rate) for s in specs]

    monkeypatch.setattr(compare, "run_cells", ran)
    plan = plan_without_ceiling([], rates=3, task="codebook")
    _, tuned = run_plan(plan, tmp_path, jobs=1)
    tried = {f"{rate:g}": end for rate, end in ends.items()}
    assert tuned["uniform"] == {"rate": 4e-4, "at_edge": False, "tried": tried}


def test_no_run_of_a_search_is_run_twice(few, monkeypatch, tmp_path):
    ran = list[Spec]()

    def run(specs, folder, **_):
        ran.extend(specs)
        return [cell(s.name, s.seed, s.rate if s.name == "uniform" else None, rate=s.rate) for s in specs]

    monkeypatch.setattr(compare, "run_cells", run)
    plan = plan_without_ceiling(["gear"], rates=2, task="codebook")
    _, tuned = run_plan(plan, tmp_path, jobs=1)
    assert tuned["uniform"]["at_edge"] and len(tuned["uniform"]["tried"]) == 3
    assert tuned["gear"]["tried"] == {"0.0004": None, "0.0008": None}
    assert len({spec.file for spec in ran}) == len(ran)


def test_another_process_reward_model_is_another_run(tmp_path):
    files = list[list[str]]()
    for text in ("a", "b"):
        (tmp_path / "weights").write_text(text)
        plan = plan_without_ceiling([f"own=shuffled:of=step_scores,of.prm={tmp_path}"])
        files.append([spec.file for spec in plan.reported_specs()])
    assert files[0][0] == files[1][0] and files[0][1] != files[1][1]


def test_a_process_that_dies_first_fails_its_own_run_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def died(specs, folder, *, each, **_):
        rows = [failed_cell(spec, "its process died: killed") for spec in specs]
        for row in rows:
            each(row)
        return rows

    monkeypatch.setattr(compare, "run_cells", died)
    out = str(tmp_path / "my runs")
    done = gear("compare", "--seeds", "1", "--rates", "1", "--out", out, "--json")
    assert done.returncode == 1 and "4 runs failed; run the same command again" in done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert found["command"] == f"gear compare --seeds 1 --rates 1 --out '{out}' --json"
    found = found["comparison"]
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


def test_too_few_seeds_are_said_before_the_first_run(monkeypatch, tmp_path):
    def asked(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run_cells", asked)
    done = gear("compare", "--seeds", "2", "--out", str(tmp_path))
    assert done.stderr.startswith("--seeds: 2; these runs will end without a verdict, which needs 3 or more")
