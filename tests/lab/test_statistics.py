"""Intervals that hold their level at few seeds: numbers by hand, slow twins, and coverage by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import coverage
from gear_rl.lab.statistics import (
    Interval,
    bootstrap_interval,
    mean_interval,
    median_ratio,
    paired_difference,
)


def t_of_two(tail: float) -> float:
    """The quantile of Student's t with 2 degrees of freedom above which `tail` lies; it has a closed form."""
    return (1 - 2 * tail) / math.sqrt(2 * tail * (1 - tail))


def test_students_interval_by_hand():
    # mean 0.8, deviation 0.1, error 0.1 / sqrt(3) = 0.057735, t of 2 degrees at 2.5 % = 4.302653
    values = [0.7, 0.8, 0.9]
    low, high = mean_interval(values)
    assert (low, high) == pytest.approx((0.8 - 0.2484138, 0.8 + 0.2484138), abs=1e-6)
    reach = t_of_two(0.05) * 0.1 / math.sqrt(3)
    assert mean_interval(values, level=0.9) == pytest.approx((0.8 - reach, 0.8 + reach))
    assert mean_interval(values, least_spread=0.2)[0] == pytest.approx(0.8 - 2 * 0.2484138, abs=1e-6)


@pytest.mark.parametrize("family", [1, 3])
def test_a_paired_difference_by_hand(family):
    # Differences 1/4, 1/2, 1/4: mean 1/3, deviation sqrt(1/48), error 1/12, t = 4.
    found = paired_difference([0.75, 1.0, 0.5], [0.5, 0.5, 0.25], family=family)
    assert (found.num_pairs, found.difference) == (3, pytest.approx(1 / 3))
    assert found.p == pytest.approx(family * (1 - 4 / math.sqrt(18)))  # 2 degrees: p = 1 - t / sqrt(2 + t^2)
    reach = t_of_two(0.025 / family) / 12
    assert found.interval == pytest.approx((1 / 3 - reach, 1 / 3 + reach))
    assert paired_difference([0.1, 0.2, 0.3], [0.1, 0.3, 0.2], family=3).p == 1.0


def test_pairs_that_agree_to_the_last_problem_prove_nothing():
    # Three times one problem of 512: with a deviation of one problem t = sqrt(3), so p = 1 - sqrt(3 / 5).
    ours, theirs = [0.5 + 1 / 512] * 3, [0.5] * 3
    found = paired_difference(ours, theirs, least_spread=1 / 512)
    assert found.p == pytest.approx(1 - math.sqrt(3 / 5))
    reach = t_of_two(0.025) / 512 / math.sqrt(3)
    assert found.interval == pytest.approx((1 / 512 - reach, 1 / 512 + reach))


@pytest.mark.parametrize(("few", "difference"), [([], None), ([0.5], 0.25), ([0.5, 1.0], 0.5)])
def test_fewer_than_three_values_have_no_interval(few, difference):
    assert mean_interval(few) is bootstrap_interval(few) is median_ratio(few, [1.0] * len(few)) is None
    assert paired_difference(few, [0.25] * len(few)) == (len(few), difference, None, None)


def test_the_bootstrap_is_corrected_for_skew():
    values = np.random.default_rng(1).exponential(size=30)
    plain = stats.bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    low, high = bootstrap_interval(values.tolist())
    assert low > plain.low + 0.01 and high > plain.high + 0.02
    even = np.random.default_rng(0).uniform(size=400).tolist()
    assert bootstrap_interval(even) == pytest.approx(mean_interval(even), abs=2e-3)


def test_the_median_ratio_by_hand():
    """Of ten the 2nd and the 9th: the median of all lies below with chance 11 / 1024, and above."""
    wholes = [0.5] * 10
    parts = [0.30, 0.35, 0.50, -9.0, 0.40, 0.45, 0.25, 0.20, 9.0, 0.10]
    # Ratios -18, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 18.
    assert median_ratio(parts, wholes) == (pytest.approx(0.65), pytest.approx((0.2, 1.0)))
    # -0.5 for the whole of 9: it may lie on either side. Below it -inf, -18, 0.2, ...; above it ..., 0.9, 1, inf.
    wholes[8] = -0.5
    share, interval = median_ratio(parts, wholes)
    assert share == pytest.approx(((0.5 + 0.6) / 2 + (0.6 + 0.7) / 2) / 2)
    assert interval == pytest.approx((-18.0, 1.0))


@pytest.mark.parametrize(("seeds", "has_interval"), [(3, False), (5, False), (6, True)])
def test_below_six_pairs_a_median_ratio_has_no_interval(seeds, has_interval):
    # All of five lie on one side of the median with chance 2 / 32, of six with 2 / 64.
    share, interval = median_ratio([0.5] * seeds, [1.0] * seeds)
    assert (share, interval) == (0.5, Interval(0.5, 0.5) if has_interval else None)


@pytest.mark.parametrize(
    ("bad", "seeds", "shown"), [(1, 10, True), (2, 10, False), (1, 6, False), (1, 4, False)]
)
def test_wholes_that_are_not_above_zero_leave_the_interval_without_an_end(bad, seeds, shown):
    found = median_ratio([0.5] * seeds, [0.0] * bad + [1.0] * (seeds - bad))
    assert found == ((0.5, Interval(0.5, 0.5)) if shown else None)


def test_the_ends_of_a_median_ratio_are_where_the_sign_test_turns():
    """The slow twin: every r at which scipy's sign test does not reject."""
    rng = np.random.default_rng(1)
    parts, wholes = rng.normal(0.05, 0.02, 13), rng.uniform(0.05, 0.15, 13)
    _, interval = median_ratio(parts.tolist(), wholes.tolist())
    for r in np.linspace(-0.5, 2.0, 501):
        above = int((parts > r * wholes).sum())
        assert (stats.binomtest(above, 13).pvalue > 0.05) == (interval.low <= r <= interval.high)


@pytest.mark.parametrize("scenario", coverage.CLEAN + coverage.LOSSY, ids=str)
def test_the_interval_of_the_share_covers_it_where_runs_are_lost(scenario, spread=0.05):
    """Ten seeds. Student's test of the same differences (Fieller's interval) covers its own share 0.65 times."""
    parts, wholes, _ = coverage.gains(np.random.default_rng(0), (1000, 10), spread, scenario)
    true = coverage.true_share(np.median, spread, scenario)
    found = [median_ratio(d, w)[1] for d, w in zip(parts.tolist(), wholes.tolist(), strict=True)]
    assert np.mean([low <= true <= high for low, high in found]) > 0.96  # 0.979, standard error 0.0045
