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
LEAST_OF_RATIO = 10
"""Pairs below which a ratio of means has no interval."""
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
    data, mean = np.asarray(values, dtype=np.float64), math.fsum(values) / len(values)
    # The deviation of equal numbers may come out as 1e-17.
    spread = max(float(np.std(data, ddof=1)) if np.ptp(data) > 0 else 0.0, least_spread)
    reach = float(special.stdtrit(len(values) - 1, (1 + level) / 2)) * spread / math.sqrt(len(values))
    return Interval(mean - reach, mean + reach)


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], family: int = 1, least_spread: float = 0.0
) -> Paired:
    """Mean of ``ours - theirs`` pair by pair, with Student's interval.

    Corrected by Bonferroni for a ``family`` of comparisons. The standard deviation of the differences is at least
    ``least_spread``: else three pairs that agree by chance to the last problem would prove anything.

    >>> paired_difference([0.75, 1.0, 0.5], [0.5, 0.5, 0.25]).difference
    0.333...
    """
    data = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    mean = math.fsum(data) / data.size if data.size else None
    return Paired(data.size, mean, mean_interval(data.tolist(), 1 - (1 - LEVEL) / family, least_spread))


def mean_ratio(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, Interval | None]:
    """The ratio of the means of pairs, with its bootstrap interval over the pairs.

    No interval below ten pairs: of ten it covers 0.90 (`benchmarks coverage`), and 0.64 to 0.68 where a tenth of
    the parts is an outlier.

    >>> mean_ratio([0.6, 0.5, 0.7], [1.0, 1.0, 1.0])
    (0.6, None)
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (parts, wholes))
    ends = None if a.size < LEAST_OF_RATIO else _bootstrap((a, b), _ratio_of_means)
    return math.fsum(parts) / math.fsum(wholes), ends


def _ratio_of_means(a: Any, b: Any, axis: int) -> Any:
    return a.mean(axis) / b.mean(axis)


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
    return _bootstrap((data,), np.mean)


def _bootstrap(data: tuple[Any, ...], statistic: Any) -> Interval:
    """Of a statistic over the places of one array or of several that are paired."""
    options: dict[str, Any] = {"confidence_level": LEVEL, "n_resamples": RESAMPLES, "vectorized": True}
    # Else all resamples are in memory at once.
    options |= {"paired": len(data) > 1, "batch": max(1, 2_000_000 // data[0].size)}
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            ends = stats.bootstrap(data, statistic, method=method, rng=0, **options).confidence_interval
        if math.isfinite(ends.low) and math.isfinite(ends.high):
            break  # the correction has no solution for a few degenerate samples
    return Interval(float(ends.low), float(ends.high))
