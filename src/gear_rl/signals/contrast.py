"""Teacher signals without what says nothing: a wrong context's share, or the first tokens of every turn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gear_rl.signals.folds import DIVERGENCES
from gear_rl.tensor.segments import segment_starts, turn_ids
from gear_rl.types import TokenSignals


def contrasted(
    right: TokenSignals, wrong: TokenSignals, divergences: Sequence[str] = DIVERGENCES
) -> TokenSignals:
    """The signals of the right context less those of the wrong one; what both hints cause alike cancels.

    A divergence is the difference of the two, not below 0. The teacher's log-prob is the student's plus the
    difference of the two teachers', so that the log-ratio becomes log T+ - log T- (CEPO, arXiv:2605.19436; RLCSD,
    arXiv:2606.11709); it needs ``student_logprob``. The teacher's entropy stays that of the right context.

    >>> mask = torch.tensor([[True, True]])
    >>> right = TokenSignals(mask=mask, divergence=torch.tensor([[2.0, 0.5]]))
    >>> contrasted(right, TokenSignals(mask=mask, divergence=torch.tensor([[0.5, 1.0]]))).divergence
    tensor([[1.5000, 0.0000]])
    """
    changes: dict[str, Any] = {
        name: (right.get(name) - wrong.get(name)).clamp_min(0.0) for name in divergences if name in right
    }
    if "teacher_logprob" in right:
        gap = right.teacher_logprob - wrong.get("teacher_logprob")
        changes["teacher_logprob"] = torch.where(right.mask, right.get("student_logprob") + gap, 0.0)
    return replace(right, **changes)


def skipping_first(
    signals: TokenSignals, num_tokens: int, divergences: Sequence[str] = DIVERGENCES
) -> TokenSignals:
    """The same signals, with the teacher agreeing with the student on the first tokens of every turn.

    There the teacher often departs for the sake of form alone (a thinking block opens or does not). Every
    divergence is 0 there and the teacher's log-prob the student's, which needs ``student_logprob``; the entropies
    stay.

    >>> mask = torch.tensor([[True, True, False, True]])
    >>> skipping_first(TokenSignals(mask=mask, divergence=torch.tensor([[3.0, 1.0, 0.0, 2.0]])), 1).divergence
    tensor([[0., 1., 0., 0.]])
    """
    if num_tokens == 0:
        return signals
    turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
    column = torch.arange(turn_id.shape[1], device=turn_id.device).expand(turn_id.shape)
    since = column - torch.where(segment_starts(turn_id), column, 0).cummax(-1).values
    skipped = signals.mask & (since < num_tokens)
    changes: dict[str, Any] = {
        name: signals.get(name).masked_fill(skipped, 0.0) for name in divergences if name in signals
    }
    if "teacher_logprob" in signals:
        own = signals.get("student_logprob")
        changes["teacher_logprob"] = torch.where(skipped, own, signals.teacher_logprob)
    return replace(signals, **changes)
