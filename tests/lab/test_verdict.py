"""The verdict: one comparison by hand, the words where there is none, and how often it is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from gear_rl.lab.cells import Cell
from gear_rl.lab.findings import read_runs, write_runs
from gear_rl.lab.verdict import Comparison, Verdict, compare
from lab.test_statistics import t_of_two

RESULTS = Path(__file__).parents[2] / "results"


def cell(method: str, seed: int, end: float | None, start: float = 0.25, **more: Any) -> Cell:
    row: dict[str, Any] = {
        "task": "chain", "tier": "default", "method": method, "credit": method.title(), "seed": seed, "steps": 20,
        "n_eval": 512, "error": None if end is not None else "killed",
    }  # fmt: skip
    row |= more
    way = [{"step": step, "rewards": (reward,)} for step, reward in row.get("held_out", [])]
    ends = [
        None if end is None else {"step": step, "rewards": (x,)}
        for step, x in ((0, start), (row["steps"], end))
    ]
    return Cell(**row | {"before": ends[0], "held_out": way, "after": ends[1]})


def cells_of(ends: dict[str, list[float | None]], **more: Any) -> list[Cell]:
    return [cell(method, seed, end, **more) for method in ends for seed, end in enumerate(ends[method])]


def gear_of(ends: dict[str, list[float | None]], outcome: Any = "accuracy", **more: Any) -> Verdict:
    found = compare(cells_of(ends, **more), outcome=outcome)
    [verdict] = [one for one in found.verdicts if one.method == "gear"]
    return verdict


def test_a_comparison_by_hand():
    way = {
        "uniform": [(10, 0.5), (10, 0.5), (10, 0.75)],
        "gear": [(4, 0.75), (8, 0.5), (16, 0.25)],
    }
    ends = {"uniform": [0.5, 0.5, 0.25], "gear": [0.75, 1.0, 0.5]}
    cells = [cell(m, s, ends[m][s], 0.0, held_out=[way[m][s]]) for m in ends for s in range(3)]
    found = compare(cells)
    uniform, gear = found.verdicts
    assert (uniform.method, gear.method) == ("uniform", "gear")
    assert (found.family, found.n_eval, found.steps, found.seeds) == (1, 512, 20, (0, 1, 2))
    # Differences 1/4, 1/2, 1/4 of tests/lab/test_statistics.py: mean 1/3, error 1/12.
    assert gear.difference == pytest.approx(1 / 3)
    reach = 4.3026527 / 12
    assert gear.difference_interval == pytest.approx((1 / 3 - reach, 1 / 3 + reach), abs=1e-6)
    assert (gear.verdict, gear.words) == ("no difference shown", "no difference shown at 3 seeds")
    assert gear.mean == pytest.approx(0.75)
    # Deviation 1/4, so 0.75 +- 4.3026527 / 4 / sqrt(3) = 0.75 +- 0.621, cut at 1.
    assert gear.interval == pytest.approx((0.1289650, 1.0), abs=1e-6)
    assert (uniform.before, gear.before) == (0.0, 0.0)
    assert (uniform.verdict, uniform.difference) == ("baseline", None)
    assert json.loads(found.model_dump_json())["verdicts"][1]["method"] == "gear"


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_scale_of_a_reward_changes_no_verdict(scale):
    ends = {"uniform": [0.6, 0.61, 0.62], "gear": [0.69, 0.72, 0.72]}
    scaled = {method: [scale * end for end in row] for method, row in ends.items()}
    more = {"start": 0.25 * scale, "outcome": "reward", "full_marks": scale, "n_eval": 32}
    found, own = gear_of(scaled, **more), gear_of(ends, outcome="reward", n_eval=32)
    assert found.words == own.words == "better at 3 seeds"
    assert found.difference_interval == pytest.approx([scale * end for end in own.difference_interval])


def test_the_least_spread_follows_the_rewards_that_were_seen():
    ends = {"uniform": [0.5, 0.5, 0.5], "gear": [0.6, 0.6, 0.6]}
    plain, wide = (
        gear_of(ends, outcome="reward", n_eval=32, rewards=(low, 1.0)).difference_interval
        for low in (0.0, -9.0)
    )
    assert wide.high - 0.1 == pytest.approx(10 * (plain.high - 0.1))


@pytest.mark.parametrize(
    ("base", "ours", "verdict"),
    [
        ([0.60, 0.62, 0.61, 0.60], [0.70, 0.72, 0.71, 0.70], "better"),
        ([0.60, 0.62, 0.61, 0.60], [0.50, 0.52, 0.51, 0.50], "worse"),
        ([0.5] * 3, [0.5 + 1 / 512] * 3, "no difference shown"),  # one problem more in each seed
        ([0.5] * 3, [1.0] * 3, "better"),  # a method may saturate
    ],
)
def test_the_interval_of_the_difference_decides(base, ours, verdict):
    found = gear_of({"uniform": base, "gear": ours})
    assert (found.verdict, found.words) == (verdict, f"{verdict} at {len(base)} seeds")


def test_more_methods_need_more_evidence():
    ends = {"uniform": [0.5, 0.5, 0.25], "gear": [0.75, 1.0, 0.5]}
    more = {**ends, "other": [0.5, 0.25, 0.5], "third": [0.5, None, None]}
    alone, among = gear_of(ends), gear_of(more)
    one, three = (found.difference_interval for found in (alone, among))
    wider = t_of_two(0.025 / 3) / t_of_two(0.025)
    assert three.high - three.low == pytest.approx(wider * (one.high - one.low)), (
        "failed ones were compared too"
    )


def test_failed_and_missing_seeds_leave_the_pairs_and_are_listed():
    cells = cells_of({"uniform": [0.5, 0.51, 0.49, None, 0.5], "gear": [0.7, None, 0.69, 0.71, 0.7, 0.2]})
    crash = cell("gear", 7, None, error="CUDA out of memory")
    found = compare([*reversed(cells), crash])
    gear = found.verdicts[1]
    assert gear.paired_seeds == (0, 2, 4) and gear.seeds == (0, 2, 3, 4, 5)
    assert (gear.failed_seeds, gear.lost_seeds) == ((1, 7), (5,))
    assert gear.difference == pytest.approx((0.2 + 0.2 + 0.2) / 3)
    assert gear.words == "no verdict: 3 of 7 seeds failed", "those that are left would speak for them"
    killed = (("uniform", 3, "killed"), ("gear", 1, "killed"))
    assert found.failed == (*killed, ("gear", 7, "CUDA out of memory"))
    assert found.missing == (("uniform", 5), ("uniform", 7))
    assert found.seeds == (0, 1, 2, 3, 4, 5, 7)


@pytest.mark.parametrize("few", [[None, None, None], [0.9, 0.95, None]])
def test_two_pairs_are_too_few(few):
    for baseline, other in (([0.5] * 3, few), (few, [0.5] * 3)):
        found = compare(cells_of({"uniform": baseline, "gear": other}))
        gear, pairs = found.verdicts[1], 3 - few.count(None)
        assert gear.words == f"no verdict: too few seeds ({pairs} paired, 3 needed)"
        assert gear.difference_interval is None
        assert (gear.difference is None) == (pairs == 0), "the numbers are shown"
        assert len(found.failed) == (baseline + other).count(None)
        assert json.loads(found.model_dump_json())["verdicts"][1]["method"] == "gear"


# 0.05 ** (1 / 512) = 0.99417: three wrong of 512 are 0.99414, two are 0.99609. More samples are no more problems.
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    ("end", "n_eval", "saturates"), [(509 / 512, 512, False), (510 / 512, 512, True), (0.97, 64, True)]
)
def test_no_verdict_where_the_baseline_saturates(end, n_eval, saturates, samples):
    ends = {"uniform": [end] * 3, "gear": [0.5] * 3}
    words = f"no verdict: the baseline saturates ({end:.3f}; {n_eval} problems cannot tell that from 1)"
    found = gear_of(ends, n_eval=n_eval, samples=samples)
    assert found.words == (words if saturates else "worse at 3 seeds")


@pytest.mark.parametrize(
    ("right", "high", "words"),
    [(1.0, 1.0, "no verdict: the baseline saturates"), (1.0, 2.0, "worse at 3 seeds")],
)
def test_a_graded_reward_saturates_at_full_marks(right, high, words):
    """Not where rewards go on above them."""
    cells = cells_of({"uniform": [0.9, 0.91, 0.92], "gear": [0.5] * 3}, n_eval=64, rewards=(0.0, high))
    after = [one.after.model_copy(update={"successes": (right,)}) for one in cells]
    cells = [one.model_copy(update={"after": end}) for one, end in zip(cells, after, strict=True)]
    assert compare(cells, outcome="reward").verdicts[1].words.startswith(words)


# Start 0.25 of 512: noise sqrt(p (1 - p) / 512) with p = 130 / 516 is 0.01918. The ends are alike, so that t of 2
# degrees at 5 %, 2.919986, asks for a rise of more than 0.0560. A start of 0: noise 0.00274, times 2.92 = 0.0080.
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    ("start", "ends", "moves"),
    [
        (0.25, [0.305] * 3, False),
        (0.25, [0.307] * 3, True),
        (0.25, [0.2, 0.35, 0.5], False),  # mean 0.35, deviation 0.15, error 0.0866: less than 2.92 errors
        (0.25, [0.34, 0.35, 0.36], True),
        (0.0, [0.010] * 3, True),
    ],
)
def test_no_verdict_where_the_baseline_never_moves(start, ends, moves, samples):
    found = gear_of({"uniform": ends, "gear": [0.9] * 3}, start=start, samples=samples)
    words = f"the baseline's change may be noise ({start:.3f} before, {sum(ends) / 3:.3f} after)"
    assert found.words == ("better at 3 seeds" if moves else f"no verdict: {words}")


@pytest.mark.parametrize(
    ("ends", "advice"),
    [
        ([0.3] * 3, "(--n-eval)"),
        ([1.0] * 3, "harder problems"),
        ([0.02, 0.0, 0.01], "lower learning rate"),
        ([0.6, 0.61, 0.62], None),
    ],
)
def test_where_there_is_no_verdict_it_says_what_to_do(ends, advice):
    found = compare(cells_of({"uniform": ends, "gear": [0.9] * 3})).advice
    assert found is None if advice is None else advice in found


def shares(**ends: list[float | None]) -> Comparison:
    return compare(cells_of(ends), ceiling="oracle")


def test_the_share_of_the_ceilings_gain():
    ends = {"gear": [0.90, 0.90, 0.91], "shuffled": [0.80, 0.81, 0.82]}
    found = shares(uniform=[0.80, 0.82, 0.81], oracle=[0.95, 0.96, 0.95], **ends)
    uniform, oracle, gear, shuffled = (v.share for v in found.verdicts)
    assert uniform is None and oracle == 1.0
    assert gear == pytest.approx(0.28 / 0.43), "of the mean gains"
    assert all(v.share_interval is None for v in found.verdicts), "of three seeds"
    assert shuffled == pytest.approx(0.0, abs=1e-12)
    assert found.family == 2, "the ceiling is no method that is tried"
    assert found.ceiling_gain.interval.low > 0
    words = [v.verdict for v in found.verdicts]
    assert words == ["baseline", "better", "better", "no difference shown"]


GRPO, OURS = [0.60, 0.62, 0.61, 0.60], [0.70, 0.72, 0.71, 0.70]


@pytest.mark.parametrize(
    ("same", "ours", "words"),
    [
        ([0.50, 0.52, 0.51, 0.50], OURS, "better at 4 seeds"),
        ([0.70, 0.71, 0.71, 0.71], OURS, "no difference shown at 4 seeds"),
        ([0.80, 0.82, 0.81, 0.80], OURS, "no difference shown at 4 seeds"),
        ([0.55, 0.52, 0.51, 0.50], [0.40, 0.42, 0.41, 0.40], "worse at 4 seeds"),
        ([0.40, 0.41, 0.41, 0.41], [0.40, 0.42, 0.41, 0.40], "no difference shown at 4 seeds"),
        (None, OURS, "no verdict: uniform was not run at its rate (0.0004)"),
        (
            [0.5, 0.5, None, None],
            OURS,
            "no verdict: too few seeds (2 paired with uniform at the method's rate, 3 needed)",
        ),
        (None, GRPO, "no difference shown at 4 seeds"),
        ([0.50, 0.52, 0.51, None], OURS, "no verdict: 1 of 4 seeds failed"),
        ([0.50, 0.52, 0.51, 0.50], [*OURS[:3], None], "no verdict: 1 of 4 seeds failed"),
        ([0.50, 0.52, 0.51, 0.50], [*GRPO[:3], None], "no difference shown at 3 seeds"),
    ],
)
def test_a_claim_holds_at_both_rates(same, ours, words):
    """Of the baseline's own, and of the method's: else the luck of the tuning runs would be the method's."""
    cells = cells_of({"uniform": GRPO}, rate=2e-4) + cells_of({"gear": ours}, rate=4e-4)
    cells += cells_of({"uniform@0.0004": same or []}, rate=4e-4)
    found = compare(cells)
    gear = next(v for v in found.verdicts if v.method == "gear")
    assert (gear.words, found.family) == (words, 1)
    alone = compare([one for one in cells if "@" not in one.method])
    assert gear.difference_interval == alone.verdicts[1].difference_interval
    assert (gear.at_its_rate is None) == (same is None)
    if same and None not in [*same, *ours]:
        assert gear.at_its_rate.difference == pytest.approx((sum(ours) - sum(same)) / 4)


def test_lost_runs_of_the_baseline_are_said_with_the_verdict():
    found = gear_of({"uniform": [0.8, 0.81, 0.8, 0.81, 0.2], "gear": [0.82, 0.8, 0.81, 0.82, 0.81]})
    assert found.words == "no difference shown at 5 seeds; uniform lost 1"


@pytest.mark.parametrize("oracle", [[0.79, 0.86, 0.81], [0.70, 0.72, 0.71]])
def test_a_task_whose_ceiling_does_not_gain_cannot_tell(oracle):
    found = shares(uniform=[0.80, 0.82, 0.81], oracle=oracle, gear=[0.90, 0.90, 0.91])
    assert found.baseline_problem.startswith("this task cannot tell (who knows the truth gains ")
    assert [v.verdict for v in found.verdicts] == ["baseline", "no verdict", "no verdict"]
    assert all(v.share is None and v.share_interval is None for v in found.verdicts)


def test_the_curve_of_a_run_goes_from_before_to_after_and_that_of_a_failed_one_is_empty():
    way = [(5, 0.375), (15, 0.5)]
    assert cell("gear", 0, 0.75, held_out=way).curve("accuracy") == [(0, 0.25), *way, (20, 0.75)]
    assert cell("gear", 0, None, held_out=way).curve("accuracy") == []
    with pytest.raises(ValueError, match="no score before or after, and no error"):
        cell("gear", 0, None, error=None)


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_a_committed_file_reads_back_as_it_was_written(file, tmp_path):
    found = read_runs(file)
    write_runs(found, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()
    assert not found.comparison.failed
