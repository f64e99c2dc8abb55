"""Completions of a group beside each other, where processes hold parts of it. Knows no method and no trainer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gear_rl.signals.engine import Engine
from gear_rl.signals.signal import names_of
from gear_rl.types import Credit, CreditAssigner, TokenSignals, is_per_row


def credit_beside_siblings(
    method: CreditAssigner, advantage_B: Float[Tensor, " B"], signals: TokenSignals, engine: Engine
) -> Credit:
    """The method's credit for this process's completions, beside their siblings on other processes."""
    if not any(is_per_row(name) for name in names_of(method.needs)):
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
    given = {
        "mask": signals.mask.long(),
        **signals.values,
    }  # not every communication library gathers booleans
    if signals.turn_id is not None:
        given["turn_id"] = signals.turn_id
    for name, value in given.items():
        if not is_per_row(name):
            # Integer signals are -1 outside the mask, and padding is outside.
            outside = -1 if name != "mask" and value.dtype == torch.int64 else 0
            value = nn.functional.pad(value, (0, widest - value.shape[1]), value=outside)
        given[name] = engine.gather(value)
    mask, turn_id = given.pop("mask").bool(), given.pop("turn_id", None)
    everyones = TokenSignals(mask=mask, turn_id=turn_id, values=given)
    return engine.gather(advantage_B), everyones, slice(first, first + rows)
