"""The verdict: one comparison by hand, the words where nothing can be said, and how often it is wrong."""

import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from gear_rl.lab import verdict
from gear_rl.lab.verdict import area_under, budget_to, cell_of, curve_of, failure_of


def compare(*args, **options):
    """The comparison with its keys as attributes."""
    found = verdict.compare(*args, **options)
    return SimpleNamespace(**found | {"verdicts": [SimpleNamespace(**row) for row in found["verdicts"]]})


def cell(method: str, seed: int, end: float | None, start: float | None = 0.25, **more: object) -> dict:
    row = {
        "task": "chain", "tier": "default", "method": method, "credit": method.title(), "seed": seed, "steps": 20,
        "n_eval": 512, "accuracy_before": start, "accuracy_after": end, "held_out": [], "curves": {},
        "seconds": 1.0, "error": None,
    }  # fmt: skip
    return cell_of({**row, **more})


def cells_of(ends: dict[str, list[float | None]], **more: object) -> list[dict]:
    return [cell(method, seed, end, **more) for method in ends for seed, end in enumerate(ends[method])]


def of(found, method: str):
    return next(one for one in found.verdicts if one.method == method)


def test_a_comparison_by_hand():
    way = {
        "uniform": [(10, 0.5), (10, 0.5), (10, 0.75)],
        "gear": [(4, 0.75), (8, 0.5), (16, 0.25)],
    }
    ends = {"uniform": [0.5, 0.5, 0.25], "gear": [0.75, 1.0, 0.5]}
    cells = [
        cell(m, s, ends[m][s], 0.0, held_out=[{"step": way[m][s][0], "accuracy": way[m][s][1], "n": 128}])
        for m in ends
        for s in range(3)
    ]
    found = compare(cells)
    gear, uniform = of(found, "gear"), of(found, "uniform")
    assert [v.method for v in found.verdicts] == ["uniform", "gear"]
    assert (found.family, found.n_eval, found.steps, found.seeds) == (1, 512, 20, [0, 1, 2])
    # Differences 1/4, 1/2, 1/4 of tests/lab/test_statistics.py: mean 1/3, error 1/12, t = 4, p = 0.0572.
    assert gear.difference == pytest.approx(1 / 3)
    assert gear.difference_interval == pytest.approx(
        (1 / 3 - 4.3026527 / 12, 1 / 3 + 4.3026527 / 12), abs=1e-6
    )
    assert gear.p == pytest.approx(1 - 4 / math.sqrt(18))
    assert (gear.verdict, gear.words) == ("no difference shown", "no difference shown at 3 seeds")
    assert gear.mean == gear.iqm == pytest.approx(0.75)
    # Deviation 1/4, so 0.75 +- 4.3026527 / 4 / sqrt(3) = 0.75 +- 0.621, cut at 1.
    assert gear.interval == pytest.approx((0.1289650, 1.0), abs=1e-6)
    # Area of seed 0: 4 steps from 0 to 0.75 and 16 at 0.75: (4 * 0.375 + 16 * 0.75) / 20 = 0.675.
    # Seed 1: 8 steps of mean 0.25, 12 of mean 0.75: 0.55. Seed 2: 16 of mean 0.125, 4 of mean 0.375: 0.175.
    assert gear.area == pytest.approx((0.675 + 0.55 + 0.175) / 3)
    # Uniform: 10 steps of mean 0.25 and 10 at 0.5: 0.375, twice; mean 0.375, then mean 0.5: 0.4375.
    assert uniform.area == pytest.approx((0.375 + 0.375 + 0.4375) / 3)
    assert gear.area_difference == pytest.approx((0.3 + 0.175 - 0.2625) / 3)
    low, high = gear.area_difference_interval
    assert (low + high) / 2 == pytest.approx(gear.area_difference)
    assert low < 0 < high
    assert (uniform.verdict, uniform.words, uniform.difference, uniform.p) == (
        "baseline",
        "baseline",
        None,
        None,
    )
    json.dumps(found.cells, allow_nan=False)
    json.dumps([vars(one) for one in found.verdicts], allow_nan=False)


def test_better_and_worse():
    base = [0.60, 0.62, 0.61, 0.60]
    found = compare(
        cells_of({"uniform": base, "up": [b + 0.1 for b in base], "down": [b - 0.1 for b in base]})
    )
    assert (of(found, "up").verdict, of(found, "up").words) == ("better", "better at 4 seeds")
    assert (of(found, "down").verdict, of(found, "down").words) == ("worse", "worse at 4 seeds")


def test_more_methods_need_more_evidence():
    ends = {"uniform": [0.5, 0.5, 0.25], "gear": [0.75, 1.0, 0.5]}
    more = {**ends, "other": [0.5, 0.25, 0.5], "third": [0.5, None, None]}
    alone, among = of(compare(cells_of(ends)), "gear"), of(compare(cells_of(more)), "gear")
    assert among.p == pytest.approx(3 * alone.p), "methods whose runs failed were compared too"
    assert among.difference_interval[0] < alone.difference_interval[0]


def test_ties_are_no_difference_and_no_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(cells_of({"uniform": [0.6] * 4, "gear": [0.6] * 4}))
    gear = of(found, "gear")
    assert (gear.difference, gear.p, gear.verdict) == (0.0, 1.0, "no difference shown")
    assert gear.difference_interval[0] == -gear.difference_interval[1]
    assert 0 < gear.difference_interval[1] < 2 / 512
    json.dumps(found.cells, allow_nan=False)
    json.dumps([vars(one) for one in found.verdicts], allow_nan=False)


def test_one_problem_more_in_three_seeds_is_not_better():
    assert of(compare(cells_of({"uniform": [0.5] * 3, "gear": [0.5 + 1 / 512] * 3})), "gear").verdict == (
        "no difference shown"
    )


def test_seeds_are_paired_by_their_number():
    """The same ends in another order of the cells: the pairs are those of the seeds, not of the places."""
    base, ours = [0.2, 0.4, 0.6], [0.3, 0.5, 0.7]
    cells = cells_of({"uniform": base, "gear": ours}, start=0.0)
    found = of(compare([*cells[:3], *reversed(cells[3:])]), "gear")
    assert found.words == "better at 3 seeds"
    assert found.difference_interval == pytest.approx((0.1, 0.1), abs=0.006)


def test_failed_and_missing_seeds_leave_the_pairs_and_are_told():
    ends = {"uniform": [0.5, 0.51, 0.49, None, 0.5], "gear": [0.7, None, 0.69, 0.71, 0.7, 0.9]}
    cells = cells_of(ends)
    crash = cells[-1] | {"seed": 7, "error": "CUDA out of memory"}
    found = compare([*cells, crash])
    gear = of(found, "gear")
    assert gear.paired_seeds == [0, 2, 4]
    assert gear.seeds == [0, 2, 3, 4, 5]
    assert gear.failed_seeds == [1, 7]
    assert gear.difference == pytest.approx((0.2 + 0.2 + 0.2) / 3)
    assert gear.words == "better at 3 seeds"
    lost = "no number in accuracy_after"
    assert found.failed == [("uniform", 3, lost), ("gear", 1, lost), ("gear", 7, "CUDA out of memory")]
    assert found.missing == [("uniform", 5), ("uniform", 7), ("gear", 6)][:2]
    assert found.seeds == [0, 1, 2, 3, 4, 5, 7]


def test_two_pairs_are_too_few():
    found = compare(cells_of({"uniform": [0.5, 0.51, None], "gear": [0.9, 0.95, None]}))
    gear = of(found, "gear")
    assert gear.words == "no verdict: too few seeds (2 paired, 3 needed)"
    assert gear.difference == pytest.approx(0.42), "the numbers are shown"
    assert gear.p is None
    assert [name for name, value in vars(gear).items() if "interval" in name and value is not None] == []


def test_runs_that_end_below_their_start_are_counted():
    found = compare(cells_of({"uniform": [0.5, 0.24, 0.25], "gear": [0.1, None, 0.2]}))
    assert (of(found, "uniform").lost_seeds, of(found, "gear").lost_seeds) == ([1], [0, 2])


@pytest.mark.parametrize("ends", [[None, None, None], [0.9, None, None]])
def test_a_comparison_where_nearly_all_failed_still_tells(ends):
    for baseline, other in (([0.5] * 3, ends), (ends, [0.5] * 3), (ends, ends)):
        found = compare(cells_of({"uniform": baseline, "gear": other}))
        assert of(found, "gear").verdict == "no verdict"
        assert len(found.failed) == (baseline + other).count(None)
        json.dumps(found.cells, allow_nan=False)
        json.dumps([vars(one) for one in found.verdicts], allow_nan=False)


# 0.05 ** (1 / 512) = 0.99417: three wrong of 512 are 0.99414, two are 0.99609.
@pytest.mark.parametrize(
    ("end", "n_eval", "saturates"), [(509 / 512, 512, False), (510 / 512, 512, True), (0.97, 64, True)]
)
def test_no_verdict_where_the_baseline_saturates(end, n_eval, saturates):
    found = compare(cells_of({"uniform": [end] * 3, "gear": [0.5] * 3}, n_eval=n_eval))
    assert (found.baseline_problem is not None) == saturates
    assert of(found, "gear").verdict == ("no verdict" if saturates else "worse")
    if saturates:
        words = f"no verdict: the baseline saturates ({end:.3f}; {n_eval} problems cannot tell that from 1)"
        assert of(found, "gear").words == words


def test_a_method_may_saturate():
    assert of(compare(cells_of({"uniform": [0.5] * 3, "gear": [1.0] * 3})), "gear").verdict == "better"


# Start 0.25 of 512: noise sqrt(p (1 - p) / 512) with p = 130 / 516 is 0.01918. The ends are alike, so that t of 2
# degrees at 5 %, 2.919986, asks for a rise of more than 0.0560.
@pytest.mark.parametrize(("end", "moves"), [(0.305, False), (0.307, True), (0.25, False), (0.1, False)])
def test_no_verdict_where_the_baseline_never_moves(end, moves):
    found = compare(cells_of({"uniform": [end] * 3, "gear": [0.9] * 3}))
    assert of(found, "gear").verdict == ("better" if moves else "no verdict")
    if not moves:
        assert f"the baseline never moves (0.250 before, {end:.3f} after" in of(found, "gear").words


def test_the_spread_of_the_ends_is_noise_too():
    ends = [0.2, 0.35, 0.5]  # mean 0.35, deviation 0.15, error 0.0866: 0.1 is less than 2.92 errors
    assert "never moves" in compare(cells_of({"uniform": ends})).baseline_problem
    assert compare(cells_of({"uniform": [0.34, 0.35, 0.36]})).baseline_problem is None


def test_a_start_of_nothing_has_noise_too():
    # 2 right of 516 added: noise 0.00274, times 2.92 = 0.0080.
    assert compare(cells_of({"uniform": [0.006] * 3}, start=0.0)).baseline_problem is not None
    assert compare(cells_of({"uniform": [0.010] * 3}, start=0.0)).baseline_problem is None


def test_a_rounded_mean_is_reached_by_equal_ends():
    ends = [0.8] * 3
    assert math.fsum(ends) / 3 >= 0.8
    for end in (0.1 * n for n in range(1, 10)):
        assert of(compare(cells_of({"uniform": [end] * 3}, start=0.0)), "uniform").budget == 1.0
    assert budget_to([(0, 0.1), (7, 0.3)], 0.1 + 0.2) == 1.0


def test_area_is_the_loop():
    rng = np.random.default_rng(3)
    for _ in range(20):
        steps = np.cumsum(rng.integers(1, 9, size=6)).tolist()
        heights = rng.uniform(size=6).tolist()
        area = 0.0
        for n in range(5):
            area += (steps[n + 1] - steps[n]) * (heights[n] + heights[n + 1]) / 2
        found = area_under(list(zip(steps, heights, strict=True)))
        assert found == pytest.approx(area / (steps[5] - steps[0]))


def simulated(rng: np.random.Generator, effects: list[float], spreads: list[float], n: int) -> list[dict]:
    """The baseline and a method per effect: rates scatter over seeds, accuracies are counts of 512 problems."""
    cells: list[dict] = []
    for place, (effect, spread) in enumerate(zip([0.0, *effects], spreads, strict=True)):
        for seed in range(n):
            end = rng.binomial(512, 0.7 + effect + spread * rng.normal()) / 512
            cells.append(cell("uniform" if place == 0 else f"m{place}", seed, end))
    return cells


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
def test_the_interval_covers_a_known_effect(num_seeds):
    rng = np.random.default_rng(num_seeds)
    hits, tries = 0, 150
    for _ in range(tries):
        found = compare(simulated(rng, [0.05], [0.01, 0.04], num_seeds))
        low, high = of(found, "m1").difference_interval
        hits += low <= 0.05 <= high
    least, most = stats.binom.interval(0.999, tries, 0.95)
    assert least <= hits <= most


def test_all_intervals_together_cover_their_effects():
    rng = np.random.default_rng(4)
    effects, hits, tries = [0.0, 0.05, -0.05, 0.1], 0, 100
    for _ in range(tries):
        found = compare(simulated(rng, effects, [0.02, 0.02, 0.05, 0.01, 0.03], 5))
        pairs = zip(effects, found.verdicts[1:], strict=True)
        hits += all(v.difference_interval[0] <= effect <= v.difference_interval[1] for effect, v in pairs)
    assert hits >= stats.binom.ppf(0.001, tries, 0.95)


def test_without_an_effect_better_is_rare_over_all_methods():
    """Six methods that do nothing, with spreads that are equal, unequal or only that of the counting."""
    rng = np.random.default_rng(6)
    better, worse, tries = 0, 0, 24
    spreads = ([0.02] * 7, [0.01, 0.01, 0.02, 0.04, 0.08, 0.01, 0.05], [0.0] * 7)
    for num_seeds in (3, 5, 10):
        for spread in spreads:
            for _ in range(tries):
                kinds = [v.verdict for v in compare(simulated(rng, [0.0] * 6, spread, num_seeds)).verdicts]
                better, worse = better + ("better" in kinds), worse + ("worse" in kinds)
    # Each direction should come to 2.5 %, and both to 5 %.
    assert better <= stats.binom.ppf(0.999, 9 * tries, 0.025)
    assert better + worse <= stats.binom.ppf(0.999, 9 * tries, 0.05)


def test_an_effect_that_is_there_is_found():
    rng = np.random.default_rng(5)
    found = [compare(simulated(rng, [0.1, 0.0], [0.02] * 3, 5)) for _ in range(60)]
    assert sum(of(one, "m1").verdict == "better" for one in found) >= 50


def test_the_curve_of_a_cell_runs_from_before_to_after():
    way = [{"step": s, "accuracy": a, "n": 8} for s, a in ((15, 0.5), (5, 0.375), (20, 0.125), (0, 1.0))]
    found = cell("gear", 0, 0.75, held_out=way)
    assert curve_of(found) == ((0, 0.25), (5, 0.375), (15, 0.5), (20, 0.75)), (
        "ends are those of all the problems"
    )
    assert curve_of(cell("gear", 0, None, held_out=way)) == ()
    assert curve_of(cell("gear", 0, 0.75, error="killed")) == ()


@pytest.mark.parametrize(
    "file",
    sorted((Path(__file__).parents[2] / "docs/results").glob("compare_*/*.json")),
    ids=lambda f: f.parts[-2],
)
def test_a_committed_comparison_is_what_its_cells_say(file):
    [stored] = json.loads(file.read_text(encoding="utf-8"))["comparisons"]
    cells = [cell_of(row) for row in stored["cells"]]
    found = compare(cells, stored["baseline"], stored["level"], stored.get("ceiling"))
    for told, one in zip(
        stored["verdicts"], json.loads(json.dumps([vars(one) for one in found.verdicts])), strict=True
    ):
        shared = one.keys() & told.keys()
        assert len(shared) >= 17
        assert {name: told[name] for name in shared} == {name: pytest.approx(one[name]) for name in shared}
        assert "lost_seeds" in told


def test_a_cell_that_failed_needs_no_numbers():
    found = cell_of(
        {"task": "chain", "tier": "hard", "method": "gear", "seed": 3, "steps": 5, "error": "killed"}
    )
    assert (failure_of(found), curve_of(found), found["accuracy_after"]) == ("killed", (), None)
    assert failure_of(cell("gear", 0, None)) == "no number in accuracy_after"
    assert failure_of(cell("gear", 0, None, start=None)) == "no number in accuracy_before and accuracy_after"
    assert failure_of(cell("gear", 0, 0.5)) is None


def test_a_cell_with_several_samples_and_one_of_an_earlier_version():
    found = cell("gear", 0, 0.5, samples=2, accuracies_before=[0.25, 0.25], accuracies_after=[0.375, 0.625])
    assert (found["samples"], found["accuracies_after"]) == (2, [0.375, 0.625])
    earlier = cell("gear", 0, 0.5)
    assert (earlier["samples"], earlier["accuracies_before"], earlier["accuracies_after"]) == (1, [], [])
    assert curve_of(earlier) == curve_of(found)


@pytest.mark.parametrize("samples", [1, 4])
def test_more_samples_are_no_further_problems(samples):
    """Neither rule about the baseline, nor the floor of the spread, becomes more sure of itself by them."""

    def found(ends, **more):
        return compare(cells_of({"uniform": ends, "gear": [0.5] * 3}, samples=samples, **more))

    assert found([0.996] * 3).samples == samples
    assert (
        found([0.996] * 3).baseline_problem
        == "the baseline saturates (0.996; 512 problems cannot tell that from 1)"
    )
    assert "never moves" in found([0.305] * 3).baseline_problem
    assert found([0.307] * 3).baseline_problem is None
    low, high = of(found([0.4] * 3), "gear").difference_interval
    assert (high - low) / 2 == pytest.approx(4.3026527 / 512 / math.sqrt(3))


def test_cells_that_cannot_be_compared_are_named():
    cells = cells_of({"uniform": [0.5] * 3, "gear": [0.6] * 3})
    for change, message in [
        ({"task": "errands"}, r"task: cells of \['chain', 'errands'\]"),
        ({"tier": "hard"}, r"tier: cells of \['default', 'hard'\]"),
        ({"steps": 30}, r"steps: cells of \[20, 30\]"),
        ({"n_eval": 64}, r"n_eval: cells of \[64, 512\]"),
        ({"samples": 4}, r"samples: cells of \[1, 4\]"),
        ({"seed": 1}, "method 'gear', seed 1: there are two cells"),
        ({"credit": "Gear(alpha=2)"}, "give each its own name"),
    ]:
        with pytest.raises(ValueError, match=message):
            compare([*cells[:-1], cells[-1] | change])
    with pytest.raises(ValueError, match="no cell of 'grpo'; the methods are uniform, gear"):
        compare(cells, baseline="grpo")
    with pytest.raises(ValueError, match="no cell of 'uniform'; the methods are none"):
        compare([])
