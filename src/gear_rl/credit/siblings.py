"""Completions of a group beside each other, where processes hold parts of it. Knows no method and no trainer."""

from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gear_rl.credit.engine import Engine
from gear_rl.types import ROW_SIGNALS, Credit, CreditAssigner, TokenSignals


def credit_beside_siblings(
    method: CreditAssigner, advantage_B: Float[Tensor, " B"], signals: TokenSignals, engine: Engine
) -> Credit:
    """The method's credit for this process's completions, beside their siblings on other processes."""
    if not any(name in ROW_SIGNALS for name in method.needs):
        return method(advantage_B, signals)
    everyones_B, everyones, own = _of_all_processes(advantage_B, signals, engine)
    credit, columns = method(everyones_B, everyones), signals.mask.shape[1]
    distill = credit.distill_weight
    return Credit(
        advantage=credit.advantage[own, :columns],
        segment_id=credit.segment_id[own, :columns],
        distill_weight=None if distill is None else distill[own, :columns],
    )


def _of_all_processes(
    advantage_B: Tensor, signals: TokenSignals, engine: Engine
) -> tuple[Tensor, TokenSignals, slice]:
    """The same of the completions of all processes, and which rows are this one's; siblings may be spread."""
    rows = len(advantage_B)
    first = engine.rank * rows
    if engine.world_size == 1:
        return advantage_B, signals, slice(0, rows)
    columns = torch.tensor([signals.mask.shape[1]], device=signals.mask.device)
    widest = int(engine.gather(columns).max())
    everyones: dict[str, Any] = {}
    for field in fields(signals):
        value: Tensor | None = getattr(signals, field.name)
        if value is None:
            continue
        if field.name not in ROW_SIGNALS:
            # Integer signals are -1 outside the mask, and padding is outside.
            outside = -1 if value.dtype == torch.int64 else 0
            if value.dtype == torch.bool:
                value = value.long()  # not every communication library gathers booleans
            value = nn.functional.pad(value, (0, widest - value.shape[1]), value=outside)
        everyones[field.name] = engine.gather(value)
    everyones["mask"] = everyones["mask"].bool()
    return engine.gather(advantage_B), TokenSignals(**everyones), slice(first, first + rows)
