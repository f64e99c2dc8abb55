"""Every signal that a method needs of a batch of rollouts, and no other. Knows no method: it reads ``needs``."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from jaxtyping import Bool
from torch import Tensor

from gear_rl.credit.config import CreditConfig
from gear_rl.signals.batch import ForwardRequest, Prompts, RolloutBatch
from gear_rl.signals.engine import Engine
from gear_rl.signals.passes import PassSignal
from gear_rl.signals.signal import BatchSignal, signals_of
from gear_rl.tensor.segments import turn_ids
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner, Signal, TokenSignals


def collect(
    needs: Sequence[str | Signal],
    batch: RolloutBatch,
    teachers: Sequence[Prompts],
    contexts: Sequence[str | None],
    scored_B: Bool[Tensor, " B"],
    engine: Engine,
    config: CreditConfig,
) -> TokenSignals:
    """The signals of every completion of this process; 0 in rows that are not scored, where a pass makes them.

    ``contexts`` are the privileged contexts as text. Every process must call this with the same ``needs``.
    """
    batch = replace(
        batch,
        contexts=contexts,
        success_reward=cast(float, config.success_reward),
        answer_pattern=config.answer_pattern,
    )
    signals = signals_of(needs)
    passes = [signal for signal in signals if not isinstance(signal, BatchSignal)]
    read = [own for signal in passes if isinstance(signal, PassSignal) for own in signal.reads]
    plain = [signal for signal in signals if isinstance(signal, BatchSignal)]
    made = {signal.name: signal.compute(batch, engine) for signal in dict.fromkeys([*plain, *read])}
    values = {signal.name: made[signal.name] for signal in plain}
    if passes:
        request = ForwardRequest(
            needs=passes,
            step=batch.step,
            completions=batch.completions,
            student=batch.student,
            teachers=teachers,
            scored_B=scored_B,
            inputs={signal.name: made[signal.name] for signal in read},
        )
        values |= engine.forward(request)
    mask = batch.completions.mask
    return TokenSignals(mask=mask, turn_id=turn_ids(mask), values=values)


def needs_passes(method: CreditAssigner) -> bool:
    """Whether the method costs forward passes of the model.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("uniform", "gigpo", "gear", "opsd") if needs_passes(METHODS[name]())]
    ['gear', 'opsd']
    """
    return distillation_of(method) is not None or any(
        not isinstance(signal, BatchSignal) for signal in signals_of(method.needs)
    )
