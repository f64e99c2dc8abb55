"""Means over few seeds and over many completions, with their intervals (docs/decisions/0006).

Pure: numbers in, numbers out. An interval that cannot be computed is None, never NaN.
"""

# scipy brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

LEVEL = 0.95
"""Confidence of an interval, and of all intervals of a family together."""
LEAST = 3
"""Values, or pairs, below which no interval is given: Student's of two is 12.7 times their distance long."""
RESAMPLES = 4999


class Interval(NamedTuple):
    """Two ends; low <= high."""

    low: float
    high: float


class Paired(NamedTuple):
    """A difference over pairs."""

    num_pairs: int
    difference: float | None
    """Mean of ours - theirs; None without a pair."""
    interval: Interval | None
    """Corrected for the family; None below three pairs."""
    p: float | None
    """Two-sided, corrected for the family: below 1 - LEVEL exactly where the interval excludes 0."""


def mean_interval(
    values: Sequence[float], level: float = LEVEL, least_spread: float = 0.0
) -> Interval | None:
    """Student's interval of the mean of independent values; None below three of them.

    The standard deviation is at least ``least_spread``.

    >>> [round(end, 3) for end in mean_interval([0.7, 0.8, 0.9])]
    [0.552, 1.048]
    """
    if len(values) < LEAST:
        return None
    mean, error = _mean_and_error(np.asarray(values, dtype=np.float64), least_spread)
    reach = float(special.stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return Interval(mean - reach, mean + reach)


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], family: int = 1, least_spread: float = 0.0
) -> Paired:
    """Mean of ``ours - theirs`` pair by pair, with Student's interval and p (the paired t test).

    Corrected by Bonferroni for a ``family`` of comparisons. The standard deviation of the differences is at least
    ``least_spread``: else three pairs that agree by chance to the last problem would prove anything.

    >>> paired_difference([0.75, 1.0, 0.5], [0.5, 0.5, 0.25]).p
    0.057...
    """
    data = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    if data.size == 0:
        return Paired(0, None, None, None)
    mean, error = _mean_and_error(data, least_spread)
    interval = mean_interval(data.tolist(), 1 - (1 - LEVEL) / family, least_spread)
    if interval is None:
        return Paired(data.size, mean, None, None)
    t = abs(mean) / error if error else (math.inf if mean else 0.0)
    p = min(1.0, family * 2 * float(special.stdtr(data.size - 1, -t)))
    return Paired(data.size, mean, interval, p)


def median_ratio(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, Interval | None] | None:
    """The median of the pairs' ratios, with the interval of the sign test: all r at which it does not reject that
    ``parts - r wholes`` is above 0 in half of all pairs. Holds for any distribution.

    A whole that is not above 0 counts as below and as above every r. None below three pairs, and where an end
    is not finite; no interval below six: the least and the greatest of five hold 0.94 times.

    >>> median_ratio([0.6, 0.5, 0.7, 0.4, 0.1, 0.9], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    (0.55, Interval(low=0.1, high=0.9))
    """
    pairs = list(zip(parts, wholes, strict=True))
    if len(pairs) < LEAST:
        return None
    low = np.sort([part / whole if whole > 0 else -math.inf for part, whole in pairs])
    high = np.sort([part / whole if whole > 0 else math.inf for part, whole in pairs])
    # Left out at either end: that many or fewer lie beyond the median of all with a chance below (1 - LEVEL) / 2.
    outside = int(stats.binom.ppf((1 - LEVEL) / 2, len(pairs), 0.5)) - 1
    ends = Interval(float(low[max(outside, 0)]), float(high[-1 - max(outside, 0)]))
    if not all(map(math.isfinite, ends)):
        return None
    return float(np.median(low) + np.median(high)) / 2, ends if outside >= 0 else None


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """The bias-corrected, accelerated bootstrap interval of the mean; None below three values.

    For many values of unknown shape (completions), not for seeds: of 10 values it may cover 0.62 only.

    >>> bootstrap_interval([1.0, 1.0, 1.0])
    Interval(low=1.0, high=1.0)
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size < LEAST:
        return None
    if np.ptp(data) == 0:
        return Interval(float(data[0]), float(data[0]))
    options: dict[str, Any] = {"confidence_level": LEVEL, "n_resamples": RESAMPLES, "vectorized": True}
    options["batch"] = max(1, 2_000_000 // data.size)  # else all resamples are in memory at once
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(action="ignore", category=stats.DegenerateDataWarning):
            ends = stats.bootstrap((data,), np.mean, method=method, rng=0, **options).confidence_interval
        if math.isfinite(ends.low) and math.isfinite(ends.high):
            break  # the correction has no solution for a few degenerate samples
    return Interval(float(ends.low), float(ends.high))


def _mean_and_error(data: Any, least_spread: float) -> tuple[float, float]:
    # The deviation of equal numbers may come out as 1e-17.
    spread = float(np.std(data, ddof=1)) if data.size > 1 and np.ptp(data) > 0 else 0.0
    return math.fsum(data) / data.size, max(spread, least_spread) / math.sqrt(data.size)
