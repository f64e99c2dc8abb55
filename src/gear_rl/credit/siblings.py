"""Completions of a group beside each other: on every process, and without those whose signals are unusable.

Such a completion keeps its GRPO advantage, and its siblings are not compared with it. Knows no trainer.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gear_rl.engine import Engine
from gear_rl.tensor.lists import float_list
from gear_rl.traits import is_whole_batch
from gear_rl.types import Credit, CreditAssigner, TokenSignals, is_per_row


def credit_beside_siblings(
    method: CreditAssigner,
    advantage_B: Float[Tensor, " B"],
    signals: TokenSignals,
    engine: Engine,
    first: int,
) -> Credit:
    """The method's credit for this process's completions, computed with their siblings on other processes.

    ``first`` is the place of its first completion among those of all. Every process must call this.
    """
    compares = is_whole_batch(method) or any(map(is_per_row, signals.values))
    if engine.world_size == 1 or not compares:
        return method(advantage_B, signals)
    num_rows, num_columns = signals.mask.shape
    widest = int(engine.gather(torch.tensor([num_columns], device=signals.mask.device)).max())
    values = {"mask": signals.mask, "turn_id": signals.turn_id, **signals.values}
    for name, value in values.items():
        if not is_per_row(name):
            # Integer signals are -1 outside the mask, and padding is outside.
            outside = -1 if value.dtype == torch.int64 else 0
            value = nn.functional.pad(value, (0, widest - num_columns), value=outside)
        values[name] = engine.gather(value)
    mask, turn_id = values.pop("mask"), values.pop("turn_id")
    credit = method(engine.gather(advantage_B), TokenSignals(mask=mask, turn_id=turn_id, values=values))
    own = slice(first, first + num_rows)
    distill = credit.distill_weight
    return Credit(
        advantage=credit.advantage[own, :num_columns],
        segment_id=credit.segment_id[own, :num_columns],
        distill_weight=None if distill is None else distill[own, :num_columns],
    )


def mean_over(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], engine: Engine) -> float | None:
    """The mean of ``x`` over the tokens of the mask on all processes; None if there are none."""
    sums = torch.stack([torch.where(mask, x, 0.0).double().sum(), mask.sum().double()])
    total, count = float_list(engine.gather(sums[None]).sum(0))
    return total / count if count else None


def finite_rows(signals: TokenSignals) -> Bool[Tensor, " B"]:
    """True on the rows without NaN or Inf on a trained token.

    >>> divergence = torch.tensor([[torch.nan, 1.0], [1.0, torch.nan]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> finite_rows(TokenSignals(mask=mask, divergence=divergence))
    tensor([False,  True])
    """
    finite = signals.mask.new_ones(len(signals.mask))
    for name, value in signals.values.items():  # integers are always finite
        counted = value.isfinite() if is_per_row(name) else value.isfinite() | ~signals.mask
        finite = finite & (counted if counted.dim() == 1 else counted.all(-1))
    return finite


def clean_rows(signals: TokenSignals, keep_B: Bool[Tensor, " B"]) -> TokenSignals:
    """The signals with 0 in every other row, so that a NaN there reaches neither method nor loss.

    >>> divergence = torch.tensor([[torch.nan], [2.0]])
    >>> signals = TokenSignals(mask=torch.ones(2, 1, dtype=torch.bool), divergence=divergence)
    >>> clean_rows(signals, keep_B=torch.tensor([False, True])).divergence.tolist()
    [[0.0], [2.0]]
    """
    clean: dict[str, Any] = {
        name: torch.where(keep_B if value.dim() == 1 else keep_B[:, None], value, 0.0)
        for name, value in signals.values.items()
        if value.is_floating_point()
    }
    return replace(signals, **clean)


def leave_out_rows(signals: TokenSignals, absent_B: Bool[Tensor, " B"], alone: int) -> TokenSignals:
    """The signals with the completions where ``absent_B`` is True left out of every statistic.

    They hold 0, no turn and the group ``alone``, which no other completion has.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(2, 1, dtype=torch.bool),
    ...     divergence=torch.tensor([[torch.nan], [2.0]]),
    ...     group_B=torch.tensor([0, 0]),
    ... )
    >>> shown = leave_out_rows(signals, torch.tensor([True, False]), alone=1)
    >>> shown.mask.tolist(), shown.divergence.tolist(), shown.group_B.tolist()
    ([[False], [True]], [[0.0], [2.0]], [1, 0])
    """
    absent = absent_B[:, None]
    values = dict(clean_rows(signals, ~absent_B).values)
    for name, value in values.items():
        if name == "group_B":
            values[name] = torch.where(absent_B, alone, value)
        elif not value.is_floating_point():
            outside = 0 if value.dtype == torch.bool else -1
            values[name] = value.masked_fill(absent_B if value.dim() == 1 else absent, outside)
    turn_id = torch.where(absent, -1, signals.turn_id)
    return TokenSignals(mask=signals.mask & ~absent, turn_id=turn_id, values=values)
