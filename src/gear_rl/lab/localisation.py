"""Is the credit in the right place? How well scores find a planted fault, without any training.

Pure: scores and marks of tokens in, numbers out.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gear_rl.lab.statistics import bootstrap_interval

Role = Literal["method", "floor", "control", "ceiling"]
"""Floors and the ceiling frame the methods. A control should know nothing of the fault, but may find it."""

TIED = 1e-5
"""Scores of a completion that differ by no more than this share of its largest one are equal: float32 signals
differ by about as much between processors, and records round to 6 digits."""

LEFT_OUT = ("no_fault", "all_fault", "not_finite", "fallback")
"""Why a completion is not counted: `locate` gives the first three, its caller the last, for completions that the
engine left their GRPO advantage."""


class Located(NamedTuple):
    """How well the scores of one completion find its fault."""

    auc: float
    """The chance that a faulty token scores above another token, ties half; 0.5 is chance."""
    share: float
    """Share of the absolute scores that lies on the fault."""
    lift: float
    """That share over the fault's share of the tokens; 1 where the scores are even."""
    rank: float
    """Rank of the best faulty token among all, 1 the highest; equal scores share their mean rank."""
    distance: int | None
    """Trained tokens from the fault to the nearest onset, 0 on the fault; None without an onset."""


def onsets_of(segment_id: Sequence[int]) -> list[bool]:
    """Where segments that are longer than one token begin, or go on after tokens that are not trained.

    >>> onsets_of([0, 1, 1, 2, -1]), onsets_of([0, 0, -1, 0])
    ([False, True, False, False, False], [True, False, False, True])
    """
    size, before = Counter(segment_id), [-1, *segment_id]
    return [n >= 0 and n != last and size[n] > 1 for n, last in zip(segment_id, before, strict=False)]


def locate(
    score: Sequence[float], fault: Sequence[bool], mask: Sequence[bool], onset: Sequence[bool] | None = None
) -> Located | str:
    """How well the scores of a completion find its fault among the tokens of ``mask``, or why it is not counted.

    A larger ``score`` is more suspicious. Tokens outside of the mask are not read, NaN included. Scores that
    differ by no more than ``TIED`` of the largest are equal; scores that are all 0 are even.

    >>> locate([1.0, 3.0, 0.0], [False, True, False], [True] * 3, onset=[False, False, True])
    Located(auc=1.0, share=0.75, lift=2.25, rank=1.0, distance=1)
    """
    kept = np.asarray(mask, dtype=bool)
    # Through float32, as signals are.
    scores = np.asarray(score, dtype=np.float32).astype(np.float64)[kept]
    is_fault = np.asarray(fault, dtype=bool)[kept]
    is_onset = np.asarray([False] * len(mask) if onset is None else onset, dtype=bool)[kept]
    num_faulty, num_others = int(is_fault.sum()), int((~is_fault).sum())
    if not num_faulty:
        return "no_fault"
    if not num_others:
        return "all_fault"
    if not np.isfinite(scores).all():
        return "not_finite"
    size, mass = np.abs(scores), math.fsum(np.abs(scores))
    lead = scores[is_fault][:, None] - scores[None]
    wins, loses = lead > TIED * size.max(), lead < -TIED * size.max()
    ties = ~wins & ~loses
    above = float(wins[:, ~is_fault].sum()) + float(ties[:, ~is_fault].sum()) / 2
    # A token ties with itself too.
    rank = loses.sum(-1) + (1 + ties.sum(-1)) / 2
    even = num_faulty / len(scores)
    share = math.fsum(size[is_fault]) / mass if mass else even
    distance = np.abs(np.flatnonzero(is_fault)[:, None] - np.flatnonzero(is_onset)[None])
    return Located(
        auc=above / (num_faulty * num_others),
        share=share,
        lift=share / even,
        rank=float(rank.min()),
        distance=int(distance.min()) if is_onset.any() else None,
    )


def localisation(
    located: Sequence[Located | str], role: Role = "method", among_choices: Sequence[Located | str] = ()
) -> dict[str, Any]:
    """The results of `locate` for many completions, for JSON: means with bootstrap intervals, to four digits.

    ``among_choices`` are its results with a mask of the decisions alone: over all tokens, a score that finds
    decisions is half right already. Completions count as independent: give one fault per problem.

    >>> localisation(["no_fault"])["auc"] is None
    True
    """
    kept, chosen = ([one for one in many if isinstance(one, Located)] for many in (located, among_choices))
    distances = [one.distance for one in kept if one.distance is not None]
    return {
        "role": role,
        "n": len(kept),
        "left_out": {reason: sum(one == reason for one in located) for reason in LEFT_OUT},
        **mean_estimate("auc", [one.auc for one in kept]),
        **mean_estimate("auc_choices", [one.auc for one in chosen]),
        "with_choices": len(chosen),
        **mean_estimate("share", [one.share for one in kept]),
        **mean_estimate("lift", [one.lift for one in kept]),
        **mean_estimate("rank", [one.rank for one in kept]),
        **mean_estimate("distance", distances),
        "with_onset": len(distances),
    }


def mean_estimate(name: str, values: Sequence[float]) -> dict[str, Any]:
    """The mean, and its interval; None where there are too few values."""
    interval = bootstrap_interval(values)
    return {
        name: round(math.fsum(values) / len(values), 4) if values else None,
        f"{name}_interval": None if interval is None else [round(end, 4) for end in interval],
    }
