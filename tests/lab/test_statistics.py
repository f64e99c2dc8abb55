"""Intervals that hold their level at few seeds: numbers by hand, slow twins, and coverage by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from gear_rl.lab.statistics import (
    Interval,
    bootstrap_interval,
    mean_interval,
    paired_difference,
    ratio_interval,
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
    assert mean_interval(few) is bootstrap_interval(few) is ratio_interval(few, [1.0] * len(few)) is None
    assert paired_difference(few, [0.25] * len(few)) == (len(few), difference, None, None)


def test_the_bootstrap_is_corrected_for_skew():
    values = np.random.default_rng(1).exponential(size=30)
    plain = stats.bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    low, high = bootstrap_interval(values.tolist())
    assert low > plain.low + 0.01 and high > plain.high + 0.02
    even = np.random.default_rng(0).uniform(size=400).tolist()
    assert bootstrap_interval(even) == pytest.approx(mean_interval(even), abs=2e-3)


def test_fieller_by_hand():
    """Three pairs: t = 4.302653, means 1 and 4, variances of the means and their covariance 0.01 / 3."""
    ratio, (low, high) = ratio_interval([0.9, 1.0, 1.1], [3.9, 4.0, 4.1])
    less = 4.302653**2 * 0.01 / 3
    a, b, c = 16 - less, 4 - less, 1 - less
    reach = (b * b - a * c) ** 0.5
    assert ratio == pytest.approx(0.25)
    assert (low, high) == pytest.approx(((b - reach) / a, (b + reach) / a), abs=1e-5)
    assert ratio_interval([0.5, 0.5, 0.5], [1.0, 1.0, 1.0]) == (0.5, Interval(0.5, 0.5))


def test_fiellers_ends_are_where_students_interval_touches_zero():
    """The slow twin: the set of r at which the mean of parts - r wholes is not told from 0."""
    rng = np.random.default_rng(1)
    parts, wholes = rng.normal(0.05, 0.02, 6), rng.normal(0.1, 0.02, 6)
    _, interval = ratio_interval(parts.tolist(), wholes.tolist())
    for r in np.linspace(-0.5, 2.0, 501):
        inside = mean_interval((parts - r * wholes).tolist())
        assert (inside.low <= 0 <= inside.high) == (interval.low <= r <= interval.high)


@pytest.mark.parametrize(
    ("parts", "wholes"), [([0.1, 0.2, 0.1], [0.1, -0.1, 0.05]), ([-0.5, -0.5, -0.5], [-1.0, -1.0, -1.0])]
)
def test_a_whole_that_is_not_shown_to_be_above_zero_has_no_share(parts, wholes):
    assert ratio_interval(parts, wholes) is None
