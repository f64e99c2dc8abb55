"""The share of the ceiling: by hand, where it cannot be had, and its interval under simulation."""

import numpy as np
import pytest

from gear_rl.lab.statistics import Interval, mean_interval, ratio_interval
from gear_rl.lab.verdict import budget_to, compare

PROBLEMS, SAMPLES = 256, 4


def test_fieller_by_hand() -> None:
    """Three pairs: t = 4.302653, means 1 and 4, variances of the means and their covariance 0.01 / 3."""
    found = ratio_interval([0.9, 1.0, 1.1], [3.9, 4.0, 4.1])
    assert found is not None
    ratio, (low, high) = found
    less = 4.302653**2 * 0.01 / 3
    a, b, c = 16 - less, 4 - less, 1 - less
    reach = (b * b - a * c) ** 0.5
    assert ratio == pytest.approx(0.25)
    assert (low, high) == pytest.approx(((b - reach) / a, (b + reach) / a), abs=1e-5)


def test_the_ends_are_where_students_interval_touches_zero() -> None:
    """The slow twin: the set of r at which the mean of parts - r wholes is not told from 0."""
    rng = np.random.default_rng(1)
    parts, wholes = rng.normal(0.05, 0.02, 6), rng.normal(0.1, 0.02, 6)
    found = ratio_interval(parts.tolist(), wholes.tolist())
    assert found is not None
    for r in np.linspace(-0.5, 2.0, 501):
        inside = mean_interval((parts - r * wholes).tolist())
        assert inside is not None
        assert (inside.low <= 0 <= inside.high) == (found[1].low <= r <= found[1].high)


def test_a_whole_that_is_not_shown_to_be_above_zero_has_no_share() -> None:
    assert ratio_interval([0.1, 0.2, 0.1], [0.1, -0.1, 0.05]) is None
    assert ratio_interval([-0.5, -0.5, -0.5], [-1.0, -1.0, -1.0]) is None
    assert ratio_interval([0.5, 0.5], [1.0, 1.0]) is None, "two pairs are too few"
    assert ratio_interval([0.5, 0.5, 0.5], [1.0, 1.0, 1.0]) == (0.5, Interval(0.5, 0.5))


@pytest.mark.parametrize(
    ("seeds", "share", "losers", "level"),
    [
        (3, 0.0, (), 0.95),
        (3, 0.6, (), 0.95),
        (10, 0.0, (), 0.95),
        (10, 0.6, (), 0.95),
        (10, 0.0, ("grpo",), 0.84),
        (10, 0.8, ("grpo", "method"), 0.70),
    ],
)
def test_the_interval_covers_at_its_level_unless_runs_collapse(seeds, share, losers, level) -> None:
    """With sampling noise: a run's accuracy is what its policy would have, and the luck of its answers.

    One run in ten of a loser ends around 0.6; the means over all runs, collapsed ones too, have the share.
    """
    rng = np.random.default_rng(7)
    runs, lost, end = 4000, 0.1, 0.6
    spread = {"grpo": 0.02, "method": 0.025, "oracle": 0.01}
    true = {"grpo": 0.84, "oracle": 0.94}
    base = true["grpo"] - (lost * (true["grpo"] - end) if "grpo" in losers else 0)
    mean = base + share * (true["oracle"] - base)
    true["method"] = (mean - lost * end) / (1 - lost) if "method" in losers else mean
    ends = {}
    for name in spread:
        policies = rng.normal(true[name], spread[name], (runs, seeds))
        if name in losers:
            policies = np.where(
                rng.random((runs, seeds)) < lost, rng.normal(end, 0.05, (runs, seeds)), policies
            )
        ends[name] = rng.binomial(PROBLEMS * SAMPLES, np.clip(policies, 0, 1)) / (PROBLEMS * SAMPLES)
    ours, full = ends["method"] - ends["grpo"], ends["oracle"] - ends["grpo"]
    found = [ratio_interval(*pair) for pair in zip(ours.tolist(), full.tolist(), strict=True)]
    spans = [one[1] for one in found if one is not None]
    assert len(spans) > 0.85 * runs, "the ceiling is clear of the baseline in most comparisons"
    covered = np.mean([span.low <= share <= span.high for span in spans])
    assert abs(covered - level) < 3.5 * np.sqrt(level * (1 - level) / runs), covered


def _cell(method: str, seed: int, end: float) -> dict:
    row = {
        "task": "codebook", "tier": "default", "method": method, "credit": "", "seed": seed, "steps": 40,
        "n_eval": PROBLEMS, "samples": 1, "accuracy_before": 0.5, "accuracy_after": end, "held_out": [],
        "curves": {}, "seconds": 1.0, "error": None, "rate": 4e-4,
    }  # fmt: skip
    return row


def _compared(**ends: list[float]):
    cells = [_cell(method, seed, end) for method, row in ends.items() for seed, end in enumerate(row)]
    return compare(cells, ceiling="oracle")


def test_a_comparison_leads_with_the_share() -> None:
    found = _compared(
        uniform=[0.80, 0.82, 0.81],
        oracle=[0.95, 0.96, 0.95],
        gear=[0.90, 0.90, 0.91],
        shuffled=[0.80, 0.81, 0.82],
    )
    share = {v["method"]: v["share"] for v in found["verdicts"]}
    assert share["uniform"] is None and share["oracle"] == 1.0
    assert share["gear"] == pytest.approx((0.1 + 0.08 + 0.1) / (0.15 + 0.14 + 0.14))
    assert share["shuffled"] == pytest.approx(0.0, abs=1e-12)
    assert found["family"] == 2, "the ceiling is no method that is tried"
    assert found["ceiling_gain"]["interval"] is not None
    assert found["ceiling_gain"]["interval"].low > 0
    kinds = {v["method"]: v["verdict"] for v in found["verdicts"]}
    assert kinds == {
        "uniform": "baseline", "oracle": "better", "gear": "better", "shuffled": "no difference shown"
    }  # fmt: skip


def test_a_task_whose_ceiling_is_not_clear_cannot_tell() -> None:
    found = _compared(uniform=[0.80, 0.82, 0.81], oracle=[0.79, 0.86, 0.81], gear=[0.90, 0.90, 0.91])
    assert found["baseline_problem"] is not None and found["baseline_problem"].startswith(
        "this task cannot tell"
    )
    assert [v["verdict"] for v in found["verdicts"]] == ["baseline", "no verdict", "no verdict"]
    assert all(v["share"] is None for v in found["verdicts"])


def test_a_ceiling_below_the_baseline_has_no_share() -> None:
    found = _compared(uniform=[0.80, 0.81, 0.79], oracle=[0.70, 0.71, 0.69], gear=[0.75, 0.76, 0.74])
    assert found["ceiling_gain"]["interval"] is not None
    assert found["ceiling_gain"]["interval"].high < 0
    assert all(v["share"] is None and v["share_interval"] is None for v in found["verdicts"])


def test_the_budget_to_the_baselines_end() -> None:
    assert budget_to([(0, 0.5), (10, 0.7), (40, 0.8)], 0.6) == 0.125
    assert budget_to([(0, 0.5), (40, 0.8)], 0.5) == 0.0
    assert budget_to([(0, 0.5), (40, 0.8)], 0.81) is None
    found = _compared(uniform=[0.80, 0.80, 0.80], oracle=[0.95, 0.95, 0.95], gear=[0.79, 0.9, 0.9])
    budget = {v["method"]: v["budget"] for v in found["verdicts"]}
    assert budget == {"uniform": 1.0, "oracle": pytest.approx(0.3 / 0.45), "gear": None}
