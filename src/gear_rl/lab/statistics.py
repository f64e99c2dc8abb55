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


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, Interval] | None:
    """The ratio of two paired means, with Fieller's interval (1954): all r at which Student's test does not
    distinguish the mean of ``parts - r wholes`` from 0.

    None below three pairs, and where the mean of ``wholes`` is not shown to be above 0.

    >>> ratio, (low, high) = ratio_interval([0.06, 0.05, 0.07], [0.10, 0.11, 0.10])
    >>> round(ratio, 3), round(low, 2), round(high, 2)
    (0.581, 0.3, 0.94)
    """
    ours, full = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if ours.size < LEAST:
        return None
    t_squared = float(special.stdtrit(ours.size - 1, (1 + LEVEL) / 2)) ** 2
    mean, base = math.fsum(ours) / ours.size, math.fsum(full) / full.size
    (ours_var, shared), (_, base_var) = np.cov(ours, full) / ours.size
    # (mean - r base)^2 <= t^2 (ours_var - 2 r shared + r^2 base_var), a r^2 - 2 b r + c <= 0
    a = base**2 - t_squared * base_var
    if a <= 0 or base <= 0:
        return None
    b, c = mean * base - t_squared * shared, mean**2 - t_squared * ours_var
    reach = math.sqrt(max(0.0, b * b - a * c))
    return mean / base, Interval(float((b - reach) / a), float((b + reach) / a))


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
