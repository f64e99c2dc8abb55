"""Intervals that hold what they say at few seeds: numbers by hand, slow twins, and coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gear_rl.lab.statistics import (
    bootstrap_interval,
    mean_interval,
    paired_difference,
)

TENTHS = st.integers(0, 10).map(lambda n: n / 10)  # so that ties are common
PAIRS = st.lists(st.tuples(TENTHS, TENTHS), min_size=3, max_size=9)


def t_of_two(tail: float) -> float:
    """The quantile of Student's t with 2 degrees of freedom above which `tail` lies; it has a closed form."""
    return (1 - 2 * tail) / math.sqrt(2 * tail * (1 - tail))


def test_students_interval_by_hand():
    # mean 0.8, deviation 0.1, error 0.1 / sqrt(3) = 0.057735, t of 2 degrees at 2.5 % = 4.302653
    low, high = mean_interval([0.7, 0.8, 0.9])
    assert (low, high) == pytest.approx((0.8 - 0.2484138, 0.8 + 0.2484138), abs=1e-6)
    reach = t_of_two(0.05) * 0.1 / math.sqrt(3)
    assert mean_interval([0.9, 0.7, 0.8], level=0.9) == pytest.approx((0.8 - reach, 0.8 + reach))


def test_a_paired_difference_by_hand():
    # Differences 1/4, 1/2, 1/4: mean 1/3, deviation sqrt(1/48), error 1/12, t = 4.
    found = paired_difference([0.75, 1.0, 0.5], [0.5, 0.5, 0.25])
    assert found.num_pairs == 3
    assert found.difference == pytest.approx(1 / 3)
    assert found.p == pytest.approx(1 - 4 / math.sqrt(2 + 4**2))  # 2 degrees: p = 1 - t / sqrt(2 + t^2)
    reach = t_of_two(0.025) / 12
    assert found.interval == pytest.approx((1 / 3 - reach, 1 / 3 + reach))


def test_a_family_widens_the_interval_and_multiplies_p():
    found = paired_difference([0.75, 1.0, 0.5], [0.5, 0.5, 0.25], family=3)
    reach = t_of_two(0.025 / 3) / 12
    assert found.interval == pytest.approx((1 / 3 - reach, 1 / 3 + reach))
    assert found.p == pytest.approx(3 * (1 - 4 / math.sqrt(18)))
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


def test_the_floor_of_the_spread_does_nothing_above_it():
    values = [0.7, 0.8, 0.9]
    assert mean_interval(values, least_spread=0.0999) == mean_interval(values)
    assert mean_interval(values, least_spread=0.2)[0] == pytest.approx(0.8 - 2 * 0.2484138, abs=1e-6)


def test_equal_runs_differ_by_nothing():
    found = paired_difference([0.3, 0.1, 0.2], [0.3, 0.1, 0.2])
    assert (found.difference, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)
    # The deviation of three times 0.1 comes out as 1e-17.
    low, high = mean_interval([0.1, 0.1, 0.1])
    assert low == high == pytest.approx(0.1)
    assert paired_difference([0.1 + 0.2] * 3, [0.3] * 3, least_spread=1 / 512).p == pytest.approx(1.0)


@given(PAIRS)
def test_paired_difference_is_the_paired_t_test(pairs):
    ours, theirs = map(list, zip(*pairs, strict=True))
    differences = np.subtract(ours, theirs)
    if np.ptp(differences) < 1e-9:
        return  # scipy has no answer there
    found, expected = paired_difference(ours, theirs), stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


@given(PAIRS, st.integers(1, 9), st.sampled_from([0.0, 0.05]))
def test_p_is_small_exactly_where_the_interval_excludes_nothing(pairs, family, floor):
    ours, theirs = map(list, zip(*pairs, strict=True))
    found = paired_difference(ours, theirs, family=family, least_spread=floor)
    low, high = found.interval
    if min(abs(low), abs(high)) > 1e-12:
        assert (found.p < 0.05) == (low > 0 or high < 0)


@pytest.mark.parametrize("few", [[], [0.5], [0.5, 0.6]])
def test_fewer_than_three_values_have_no_interval(few):
    assert all(of(few) is None for of in (mean_interval, bootstrap_interval))
    found = paired_difference(few, [0.25] * len(few))
    mean = pytest.approx(sum(few) / len(few) - 0.25) if few else None
    assert (found.num_pairs, found.difference, found.interval, found.p) == (len(few), mean, None, None)


def test_the_bootstrap_is_students_interval_where_both_hold():
    values = np.random.default_rng(0).uniform(size=400).tolist()
    assert bootstrap_interval(values) == pytest.approx(mean_interval(values), abs=2e-3)
    assert bootstrap_interval(values, level=0.5) == pytest.approx(mean_interval(values, level=0.5), abs=2e-3)


def test_the_bootstrap_is_corrected_for_skew():
    values = np.random.default_rng(1).exponential(size=30)
    plain = stats.bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    low, high = bootstrap_interval(values.tolist())
    assert low > plain.low + 0.01
    assert high > plain.high + 0.02


def test_the_bootstrap_is_the_same_for_the_same_seed():
    values = np.random.default_rng(2).uniform(size=20).tolist()
    assert bootstrap_interval(values) == bootstrap_interval(values)


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0], [1.0] * 199 + [0.99], [0.0, 0.0, 1e20], [0.2, 0.2, 0.2]])
def test_the_bootstrap_has_an_answer_for_any_three_values(values):
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= sum(values) / len(values) + 1e-12
    assert sum(values) / len(values) - 1e-12 <= high <= max(values)


def within(hits: int, tries: int, rate: float) -> bool:
    """Whether the count is one that the rate gives 999 times in 1000."""
    low, high = stats.binom.interval(0.999, tries, rate)
    return low <= hits <= high


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
@pytest.mark.parametrize(("spread", "their_spread"), [(0.03, 0.03), (0.06, 0.01)])
def test_a_paired_interval_covers_at_its_level(num_seeds, spread, their_spread):
    rng = np.random.default_rng(num_seeds)
    tries, effect = 1500, 0.02
    hits = 0
    for _ in range(tries):
        ours = rng.normal(0.6 + effect, spread, num_seeds).tolist()
        theirs = rng.normal(0.6, their_spread, num_seeds).tolist()
        low, high = paired_difference(ours, theirs, least_spread=1 / 512).interval
        hits += low <= effect <= high
    assert within(hits, tries, 0.95)
