"""The signals that ``needs`` may name by a string, and what a method's needs cost an engine.

A signal that is used as an object needs no line here.
"""

from collections.abc import Sequence

from gear_rl.signals.answers import AnswerRegion
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.signals.passes import ReferenceLogprob
from gear_rl.signals.saliency import AnswerActivation, AnswerGradient, AnswerOcclusion
from gear_rl.signals.signal import (
    FOLD_SIGNALS,
    BatchSignal,
    FoldSignal,
    GroupB,
    RewardB,
    RewardsBR,
    SuccessB,
    TokenId,
)
from gear_rl.signals.text_units import LineId, SentenceId
from gear_rl.signals.transport import TransportDistance
from gear_rl.signals.turns import AnchorId, TurnReward
from gear_rl.traits import distillation_of
from gear_rl.types import CreditAssigner, Signal

SIGNALS: dict[str, Signal] = {
    signal.name: signal
    for signal in (
        *FOLD_SIGNALS,
        ReferenceLogprob(),
        AnswerRegion(),
        AnswerOcclusion(),
        AnswerGradient(),
        AnswerActivation(),
        AnswerConfidence(),
        TransportDistance(),
        TokenId(),
        GroupB(),
        RewardB(),
        RewardsBR(),
        SuccessB(),
        TurnReward(),
        AnchorId(),
        SentenceId(),
        LineId(),
    )
}
"""Each at its default settings."""


def signals_of(needs: Sequence[str | Signal]) -> tuple[Signal, ...]:
    """The signals that ``needs`` lists, each once; ``ValueError`` for an unknown name.

    >>> [signal.name for signal in signals_of(["divergence", "token_id", "divergence"])]
    ['divergence', 'token_id']
    """
    if isinstance(needs, str):
        raise ValueError(f"needs: {needs!r} is a text; give a tuple of names, ({needs!r},)")
    found: dict[str, Signal] = {}
    for need in needs:
        if isinstance(need, str) and need not in SIGNALS:
            raise ValueError(f"no signal is called {need!r}; the signals are {', '.join(SIGNALS)}")
        signal = SIGNALS[need] if isinstance(need, str) else need
        if found.setdefault(signal.name, signal) != signal:
            raise ValueError(
                f"needs: {signal!r} and {found[signal.name]!r} are one signal at two settings; keep one of them"
            )
    return tuple(found.values())


def needs_teacher(method: CreditAssigner) -> bool:
    """Whether any of the method's signals needs a teacher pass.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("entropy_forks", "gear") if needs_teacher(METHODS[name]())]
    ['gear']
    """
    return any(signal.teacher for signal in signals_of(method.needs))


def needs_context(method: CreditAssigner) -> bool:
    """Whether the method reads a privileged context, for a signal or a distillation.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("uniform", "gear", "opsd", "igpo") if needs_context(METHODS[name]())]
    ['gear', 'opsd', 'igpo']
    """
    return (
        any(signal.teacher or signal.context for signal in signals_of(method.needs))
        or distillation_of(method) is not None
    )


def needs_student(method: CreditAssigner) -> bool:
    """Whether any of the method's signals is made by the shared pass of the student.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("uniform", "gear", "opsd", "igpo") if needs_student(METHODS[name]())]
    ['gear']
    """
    return any(isinstance(signal, FoldSignal) and signal.student for signal in signals_of(method.needs))


def needs_passes(method: CreditAssigner) -> bool:
    """Whether the method costs forward passes of the model.

    >>> from gear_rl.methods import METHODS
    >>> [name for name in ("uniform", "gigpo", "gear", "opsd") if needs_passes(METHODS[name]())]
    ['gear', 'opsd']
    """
    return distillation_of(method) is not None or any(
        not isinstance(signal, BatchSignal) for signal in signals_of(method.needs)
    )
