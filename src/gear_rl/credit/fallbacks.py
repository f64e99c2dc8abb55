"""Completions whose signals cannot be trusted: which they are, and signals without them.

Such a completion keeps its GRPO advantage, and its siblings are not compared with it.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from gear_rl.types import TokenSignals, is_per_row

FALLBACKS = ("no_context", "long_context", "non_finite", "no_token")
"""Why a completion keeps its GRPO advantage: no privileged context or one that is too long to be shown, a NaN or
Inf signal, no trained token."""


def finite_rows(signals: TokenSignals) -> Tensor:
    """Which rows hold no NaN or Inf on a token that counts, shape (B,).

    >>> divergence = torch.tensor([[torch.nan, 1.0], [1.0, torch.nan]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> finite_rows(TokenSignals(mask=mask, divergence=divergence))
    tensor([False,  True])
    """
    finite = signals.mask.new_ones(len(signals.mask))
    for name, value in _floats(signals):
        counted = value.isfinite()
        if not is_per_row(name):
            counted = counted | ~signals.mask
        finite = finite & (counted if counted.dim() == 1 else counted.all(-1))
    return finite


def cleaned(signals: TokenSignals, keep_B: Tensor) -> TokenSignals:
    """The same signals with 0 in every other row, so that a NaN there reaches neither method nor loss.

    >>> divergence = torch.tensor([[torch.nan], [2.0]])
    >>> signals = TokenSignals(mask=torch.ones(2, 1, dtype=torch.bool), divergence=divergence)
    >>> cleaned(signals, keep_B=torch.tensor([False, True])).divergence.tolist()
    [[0.0], [2.0]]
    """
    clean: dict[str, Any] = {
        name: torch.where(keep_B if value.dim() == 1 else keep_B[:, None], value, 0.0)
        for name, value in _floats(signals)
    }
    return replace(signals, **clean)


def without(signals: TokenSignals, absent_B: Bool[Tensor, " B"], alone: int) -> TokenSignals:
    """The signals as if nothing of the completions where ``absent_B`` is True had been trained.

    They hold 0, no turn, and group ``alone``, which no other completion has: neither a statistic over the batch
    nor one over a group counts them.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(2, 1, dtype=torch.bool),
    ...     divergence=torch.tensor([[torch.nan], [2.0]]),
    ...     group_B=torch.tensor([0, 0]),
    ... )
    >>> shown = without(signals, torch.tensor([True, False]), alone=1)
    >>> shown.mask.tolist(), shown.divergence.tolist(), shown.group_B.tolist()
    ([[False], [True]], [[0.0], [2.0]], [1, 0])
    """
    absent = absent_B[:, None]
    clean = cleaned(signals, ~absent_B)
    values = dict(clean.values)
    for name, value in values.items():
        if not value.is_floating_point():
            values[name] = (
                torch.where(absent_B, alone, value) if name == "group_B" else torch.where(absent, -1, value)
            )
    turn_id = None if signals.turn_id is None else torch.where(absent, -1, signals.turn_id)
    return TokenSignals(mask=signals.mask & ~absent, turn_id=turn_id, values=values)


def _floats(signals: TokenSignals) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in signals.values.items() if value.is_floating_point()]
