"""How a signal is made: of the rollouts alone, or of the two shared forward passes (``passes``: of its own).

A new signal is one file with one class. A method of the package or of anybody's puts the object into ``needs``;
those in ``signals.table`` may be named by a string as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.signals.batch import RolloutBatch
from gear_rl.signals.engine import Engine
from gear_rl.tensor.logits import Head
from gear_rl.types import Signal


class BatchSignal(Signal, ABC):
    """A signal that costs no forward pass: of the tokens, the text, the turns or the rewards.

    Subclasses are frozen dataclasses whose fields are their settings. The share of a completion that a token
    stands at:

    >>> import torch
    >>> @dataclass(frozen=True)
    ... class Place(BatchSignal):
    ...     name = "place"
    ...     def compute(self, batch, engine):
    ...         mask = batch.completions.mask
    ...         return torch.where(mask, mask.cumsum(-1) / mask.sum(-1, keepdim=True), 0.0)
    >>> signals_of((Place(), "group_B"))
    (Place(), GroupB())
    """

    @abstractmethod
    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        """The signal of this process's completions; every process calls this, in the same order."""


@dataclass(frozen=True, slots=True)
class States:
    """Some tokens as the two passes see them: their ids, and the hidden states that predict them."""

    token_N: Int[Tensor, " N"]
    student_ND: Float[Tensor, "N D"] | None
    head: Head
    teacher_ND: Float[Tensor, "N E"] | None
    teacher_head: Head | None
    """The teacher's own; None where it is the student's."""


Fold = Callable[[Sequence[str], States], Mapping[str, Float[Tensor, " N"]]]
"""Computes the signals of these names, all in one go over the vocabulary."""


@dataclass(frozen=True)
class FoldSignal(Signal):
    """A signal of the student's pass, the teacher's, or both: one number per token, made of their hidden states.

    All signals of a batch share these passes, and those with the same ``fold`` one call of it.
    """

    name: str
    fold: Fold
    student: bool = False
    teacher: bool = False
    late = True

    @property
    def is_divergence(self) -> bool:
        """Whether it compares the two: it is 0 where the teacher is taken to agree."""
        return self.student and self.teacher


def signals_of(needs: Sequence[str | Signal]) -> tuple[Signal, ...]:
    """The signals that ``needs`` lists, each once; ``ValueError`` for a name that is none.

    >>> [signal.name for signal in signals_of(["divergence", "token_id", "divergence"])]
    ['divergence', 'token_id']
    """
    from gear_rl.signals.table import SIGNALS  # it imports the signals' files, which import this one

    found: dict[str, Signal] = {}
    for need in needs:
        if isinstance(need, str) and need not in SIGNALS:
            raise ValueError(f"no signal is called {need!r}; the signals are {', '.join(SIGNALS)}")
        signal = SIGNALS[need] if isinstance(need, str) else need
        if found.setdefault(signal.name, signal) != signal:
            raise ValueError(f"needs: {signal!r} and {found[signal.name]!r}; a method may need one of them")
    return tuple(found.values())


def names_of(needs: Sequence[str | Signal]) -> tuple[str, ...]:
    """Their names.

    >>> names_of(["divergence", signals_of(["token_id"])[0]])
    ('divergence', 'token_id')
    """
    return tuple(dict.fromkeys(need if isinstance(need, str) else need.name for need in needs))


def needs_teacher(needs: Sequence[str | Signal]) -> bool:
    """Whether any of the signals costs a teacher pass.

    >>> needs_teacher(["student_entropy"]), needs_teacher(["divergence"])
    (False, True)
    """
    return any(signal.teacher for signal in signals_of(needs))


def needs_student(needs: Sequence[str | Signal]) -> bool:
    """Whether any of the signals is made by the shared pass of the student.

    >>> needs_student(["divergence"]), needs_student(["teacher_logprob"]), needs_student([])
    (True, False, False)
    """
    return any(isinstance(signal, FoldSignal) and signal.student for signal in signals_of(needs))
