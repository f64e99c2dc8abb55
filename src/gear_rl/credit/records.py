"""From the tensors of a credit pass to the records of the viewer, the same for every engine."""

from collections.abc import Callable, Sequence
from typing import cast

from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.credit.metrics import FALLBACKS, weights
from gear_rl.records import Record
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Credit, TokenSignals


def records_of(
    *,
    step: int,
    method: str,
    group: Sequence[int],
    prompt: Sequence[str],
    reward: Sequence[float | None],
    advantage_B: Float[Tensor, " B"],
    ids: Int[Tensor, "B T"],
    attention: Bool[Tensor, "B T"],
    credit: Credit,
    signals: TokenSignals,
    seen: Sequence[str],
    scored_B: Bool[Tensor, " B"],
    fallback_B: dict[str, Bool[Tensor, " B"]],
    tools: Sequence[dict[str, int]],
    context: Sequence[str | None],
    truncated: Sequence[bool],
    decode: Callable[[int], str],
) -> list[Record]:
    """One record per completion: its tokens without padding, and what the method read and gave.

    ``seen`` names the signals to keep; they are left out where nothing was scored. ``decode`` turns one token
    id into text. A cut-off completion that the trainer masked as a whole has no tokens left.
    """
    weight = weights(credit, advantage_B, signals.mask)
    turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
    records: list[Record] = []
    for b, kept in enumerate(attention):
        own = _values(ids[b][kept])
        records.append(
            Record(
                step=step,
                group=group[b],
                method=method,
                prompt=prompt[b],
                tokens=[decode(int(token)) for token in own],
                ids=[int(token) for token in own],
                mask=[int(trained) for trained in _values(signals.mask[b][kept])],
                turn=[int(turn) for turn in _values(turn_id[b][kept])],
                segment=[int(segment) for segment in _values(credit.segment_id[b][kept])],
                reward=reward[b],
                advantage=float(advantage_B[b]),
                credit=_values(credit.advantage[b][kept]),
                weight=_values(weight[b][kept]),
                signals={name: _values(signals.get(name)[b][kept]) for name in seen if scored_B[b]},
                fallback=next((name for name in FALLBACKS if fallback_B[name][b]), None),
                context=context[b],
                tools=tools[b],
                truncated=truncated[b],
            )
        )
    return records


def _values(x: Tensor) -> list[float]:
    return cast(list[float], x.tolist())  # pyright: ignore[reportUnknownMemberType]
