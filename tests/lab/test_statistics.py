"""Intervals that hold their level at few seeds: numbers by hand, slow twins, and coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gear_rl.lab.statistics import (
    Interval,
    bootstrap_interval,
    mean_interval,
    paired_difference,
    ratio_interval,
)

TENTHS = st.integers(0, 10).map(lambda n: n / 10)  # so that ties are common
PAIRS = st.lists(st.tuples(TENTHS, TENTHS), min_size=3, max_size=9)
PROBLEMS, SAMPLES = 256, 4


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
    bare = paired_difference(ours, theirs)
    assert (bare.p, bare.interval) == (0.0, (1 / 512, 1 / 512))
    # The deviation of three times 0.1 comes out as 1e-17.
    low, high = mean_interval([0.1, 0.1, 0.1])
    assert low == high == pytest.approx(0.1)
    assert paired_difference([0.1 + 0.2] * 3, [0.3] * 3, least_spread=1 / 512).p == pytest.approx(1.0)


@given(PAIRS, st.integers(1, 9))
def test_paired_difference_is_the_paired_t_test(pairs, family):
    ours, theirs = map(list, zip(*pairs, strict=True))
    differences = np.subtract(ours, theirs)
    if np.ptp(differences) < 1e-9:
        return  # scipy has no answer there
    found, expected = paired_difference(ours, theirs), stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    among = paired_difference(ours, theirs, family=family)
    low, high = among.interval
    if min(abs(low), abs(high)) > 1e-12:
        assert (among.p < 0.05) == (low > 0 or high < 0)


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


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0], [1.0] * 199 + [0.99], [0.0, 0.0, 1e20], [0.2, 0.2, 0.2]])
def test_the_bootstrap_has_an_answer_for_any_three_values(values):
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= sum(values) / len(values) + 1e-12
    assert sum(values) / len(values) - 1e-12 <= high <= max(values)


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


@pytest.mark.parametrize(("seeds", "share"), [(3, 0.0), (3, 0.6), (10, 0.0), (10, 0.6)])
def test_the_share_covers_at_its_level(seeds, share):
    """With sampling noise: a run's accuracy is what its policy would have, and the luck of its answers."""
    rng = np.random.default_rng(7)
    runs, level = 4000, 0.95
    ends = {}
    for name, true, spread in (
        ("grpo", 0.84, 0.02), ("method", 0.84 + 0.1 * share, 0.025), ("oracle", 0.94, 0.01),
    ):  # fmt: skip
        policies = rng.normal(true, spread, (runs, seeds))
        ends[name] = rng.binomial(PROBLEMS * SAMPLES, np.clip(policies, 0, 1)) / (PROBLEMS * SAMPLES)
    ours, full = ends["method"] - ends["grpo"], ends["oracle"] - ends["grpo"]
    found = [ratio_interval(*pair) for pair in zip(ours.tolist(), full.tolist(), strict=True)]
    spans = [one[1] for one in found if one is not None]
    assert len(spans) > 0.85 * runs, "the ceiling is clear of the baseline in most comparisons"
    covered = np.mean([span.low <= share <= span.high for span in spans])
    assert abs(covered - level) < 3.5 * np.sqrt(level * (1 - level) / runs), covered
