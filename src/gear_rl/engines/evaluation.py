"""Held-out success: how many problems are solved at the first try, and by one of k tries, with intervals.

Knows no trainer: an engine hands in the rewards.
"""

# scipy brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from math import comb, nan

import numpy as np
from scipy.stats import binomtest, bootstrap

RESAMPLES = 2000
"""Bootstrap samples of an interval; the seed is fixed, so the same rewards give the same interval."""


def pass_at_k(num_tries: int, num_right: int, k: int) -> float:
    """The chance that at least one of ``k`` tries, drawn without replacement from ``num_tries``, is right.

    Unbiased for the pass@k of the policy (Chen et al. 2021, arXiv:2107.03374, equation 1). ``ValueError`` if
    there are fewer tries than ``k``.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4), pass_at_k(4, 1, 2)
    (0.25, 1.0, 0.5)
    """
    if not 1 <= k <= num_tries:
        raise ValueError(f"k: {k} is not possible with {num_tries} tries; give 1 to {num_tries}")
    return 1.0 - comb(num_tries - num_right, k) / comb(num_tries, k)


def interval(per_problem: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean over problems, each a number from 0 to 1; NaN without any.

    Problems, not tries, are drawn anew: tries at one problem depend on each other. Wilson's interval where every
    problem is 0 or 1, which also holds where all are alike; else the percentile bootstrap.

    >>> [round(end, 3) for end in interval([1.0, 0.0, 1.0, 1.0])]
    [0.301, 0.954]
    """
    if not per_problem:
        return nan, nan
    if all(value in (0.0, 1.0) for value in per_problem):
        test = binomtest(round(sum(per_problem)), len(per_problem))
        ends = test.proportion_ci(0.95, method="wilson")
        return float(ends.low), float(ends.high)
    if len(set(per_problem)) == 1:
        return per_problem[0], per_problem[0]
    ends = bootstrap(
        (np.asarray(per_problem),),
        np.mean,
        confidence_level=0.95,
        n_resamples=RESAMPLES,
        batch=max(1, 4_000_000 // len(per_problem)),  # else all samples of all problems are in memory at once
        method="percentile",
        rng=0,
    ).confidence_interval
    return float(ends.low), float(ends.high)


def success_metrics(
    rewards: Sequence[Sequence[float | None]], success_reward: float, prefix: str
) -> dict[str, float]:
    """``PREFIX_pass@1`` and ``pass@k`` with ``_low`` and ``_high``, from the rewards of every problem's k tries.

    A try is right if its reward is at least ``success_reward``; one that no reward function judged is left out,
    and so is a problem with fewer than k judged tries.

    >>> success_metrics([[1.0, 0.0], [0.0, 0.0]], 1.0, "eval")["eval_pass@1"]
    0.25
    """
    judged = [[value >= success_reward for value in row if value is not None] for row in rewards]
    most = max(map(len, judged), default=0)
    metrics: dict[str, float] = {f"{prefix}_problems": float(sum(1 for row in judged if row))}
    for k in sorted({1, most}):
        solved = [pass_at_k(len(row), sum(row), k) for row in judged if len(row) >= k >= 1]
        if solved:
            low, high = interval(solved)
            metrics[f"{prefix}_pass@{k}"] = sum(solved) / len(solved)
            metrics[f"{prefix}_pass@{k}_low"], metrics[f"{prefix}_pass@{k}_high"] = low, high
    return metrics
