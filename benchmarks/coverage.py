"""``benchmarks coverage``: which interval of the share of the oracle's gain holds where runs are lost.

Simulated ends of runs, no model. Every candidate tests whether ``d - s w`` is centred at 0, with d and w the
gains of the method and of the oracle seed by seed; its interval is every s that it does not reject.
"""

# scipy brings no types.

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
from scipy import special, stats

from benchmarks.results import Cells

Scenario = tuple[float, float, float]
"""The share of the runs that are not lost; the chance of a loss with GRPO, and with the method."""
CLEAN: list[Scenario] = [(share, 0.0, 0.0) for share in (0.0, 0.3, 0.8, 1.0)]
LOSSY: list[Scenario] = [
    *[(0.0, 0.1, 0.1), (0.3, 0.1, 0.1), (0.8, 0.1, 0.1)],
    *[(0.0, 0.1, 0.0), (0.8, 0.1, 0.0), (0.8, 0.0, 0.1), (0.8, 0.0, 0.3)],
]
PLACES = [*product([10], [0.02, 0.05], CLEAN + LOSSY), *product([5, 20], [0.05], LOSSY)]
"""Seeds, standard deviation of the ends over seeds, scenario."""
TAIL, RESAMPLES, SAMPLES, LONG, MANY = 0.025, 1000, 4000, 200, 200_000
"""Samples for a coverage, samples for a length, seeds for the true value."""


def gains(rng: Any, size: tuple[int, int], spread: float, scenario: Scenario) -> tuple[Any, Any, Any]:
    """Gains of the method and of the oracle, and whether GRPO or the method lost the run (ends at .3 to .5)."""
    share, *chances = scenario
    luck = math.sqrt(0.5) * (
        rng.normal(size=(3, *size)) + rng.normal(size=size)
    )  # half of the variance is the seed's
    ends = np.stack([0.73 + spread * luck[0], 0.73 + 0.24 * share + spread * luck[1]])
    lost = rng.random((2, *size)) < np.reshape(chances, (2, 1, 1))
    base, ours = np.where(lost, rng.uniform(0.3, 0.5, (2, *size)), ends)
    return ours - base, 0.97 + 0.01 * luck[2] - base, lost.any(0)


def student(x: Any) -> Any:
    """Whether the mean of each row may be 0 (t test): Fieller's interval."""
    n = x.shape[1]
    return abs(x.mean(1)) <= special.stdtrit(n - 1, 1 - TAIL) * x.std(1, ddof=1) / math.sqrt(n)


def bootstrap_t(x: Any) -> Any:
    """The mean, with t's quantiles over resamples."""
    n, centred = x.shape[1], x - x.mean(1, keepdims=True)
    counts = np.random.default_rng(0).multinomial(n, [1 / n] * n, RESAMPLES).T / n
    mean = centred @ counts
    t = mean / np.sqrt(np.maximum(centred**2 @ counts - mean**2, 1e-12))
    low, high = np.quantile(t, [TAIL, 1 - TAIL], axis=1)
    return abs(x.mean(1) / x.std(1) - (low + high) / 2) <= (high - low) / 2


def permutation(x: Any) -> Any:
    """The mean, against random signs: exact where the differences are symmetric."""
    signs = np.random.default_rng(0).choice((-1, 1), (RESAMPLES, x.shape[1]))
    return (abs(x @ signs.T) >= abs(x.sum(1, keepdims=True)) - 1e-12).mean(1) > 2 * TAIL


def signed_rank(x: Any) -> Any:
    """The median of the means of two seeds (Wilcoxon; Hodges and Lehmann): exact where they are symmetric."""
    tested: Any = stats.wilcoxon(x, axis=1, method="exact")
    return tested.pvalue > 2 * TAIL


def trimmed(x: Any) -> Any:
    """The mean of the middle three fifths (Yuen)."""
    n, cut, rows = x.shape[1], x.shape[1] // 5, np.sort(x, 1)
    error = (
        np.clip(rows, rows[:, [cut]], rows[:, [n - 1 - cut]]).std(1, ddof=1)
        / (1 - 2 * cut / n)
        / math.sqrt(n)
    )
    return abs(rows[:, cut : n - cut].mean(1)) <= special.stdtrit(n - 2 * cut - 1, 1 - TAIL) * error


def sign(x: Any) -> Any:
    """The median (sign test): exact for any distribution. What ``statistics.median_ratio`` computes."""
    n, above = x.shape[1], (x > 0).sum(1)
    return np.minimum(above, n - above) >= stats.binom.ppf(TAIL, n, 0.5)


CENTRES: Mapping[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((student, bootstrap_t, permutation), np.mean),
    signed_rank: lambda x: np.median(x[: MANY // 2] + x[MANY // 2 :]),
    trimmed: lambda x: stats.trim_mean(x, 0.2),
    sign: np.median,
}
"""Every candidate, and the centre that its interval is for."""


def true_share(centre: Callable[[Any], Any], spread: float, scenario: Scenario) -> float:
    """The s at which d - s w is centred at 0, of many seeds."""
    d, w, _ = gains(np.random.default_rng(1), (MANY, 1), spread, scenario)
    low, high = -3.0, 3.0
    for _ in range(24):
        s = (low + high) / 2
        low, high = (s, high) if centre(d[:, 0] - s * w[:, 0]) > 0 else (low, s)
    return low


def coverage(say: Callable[[str], None]) -> dict[str, Any]:
    """Coverage, also of the samples without a lost run; median length; how often an interval has no end."""
    rows: list[dict[str, Any]] = []
    for n, spread, scenario in PLACES:
        say(f"{n} seeds, spread {spread}, {scenario}")
        d, w, lost = gains(np.random.default_rng(0), (SAMPLES, n), spread, scenario)
        shown, none_lost = ~student(w), ~lost.any(1)  # no share without the oracle's gain
        row = {"seeds": n, "spread": spread, "share_and_losses": scenario, "shown": float(shown.mean())}
        rows.append(row | {"none_lost": float(none_lost.mean())})
        some, full = d[:LONG], w[:LONG]
        middle = some.mean(1) / full.mean(1)
        step = (some - middle[:, None] * full).std(1) / full.mean(1) / math.sqrt(n) / 10
        grid = middle[:, None] + step[:, None] * np.arange(-140, 141)
        tried = (some[:, None] - grid[..., None] * full[:, None]).reshape(-1, n)
        for test, centre in CENTRES.items():
            true = true_share(centre, spread, scenario)
            holds, inside = test(d - true * w), test(tried).reshape(grid.shape)
            bounded = ~(inside[:, 0] | inside[:, -1])
            lengths = (inside.sum(1) * step)[bounded]
            numbers = {"true": true, "coverage": holds[shown].mean(), "no_end": 1 - bounded.mean()}
            numbers["coverage_none_lost"] = holds[shown & none_lost].mean() if none_lost.any() else math.nan
            numbers["length"] = np.median(lengths) if lengths.size else math.nan
            rows[-1][test.__name__] = {
                k: None if math.isnan(v) else round(float(v), 3) for k, v in numbers.items()
            }
    return {"level": 1 - 2 * TAIL, "samples": SAMPLES, "rows": rows}


def coverage_cells(result: Mapping[str, Any]) -> Cells:
    """A line for each scenario: coverage and median length of each candidate."""
    names = [test.__name__ for test in CENTRES]
    rows: list[tuple[str, ...]] = []
    for row in result["rows"]:
        place = f"{row['seeds']}, {row['spread']}: {', '.join(map(str, row['share_and_losses']))}"
        rows.append((place, *("{coverage:.3f} ({length})".format(**row[name]) for name in names)))
    below = ["Seeds, spread: share, losses of GRPO, losses of the method. In brackets the median length."]
    return Cells("Coverage of each interval's own share", ("", *names), rows, below)
