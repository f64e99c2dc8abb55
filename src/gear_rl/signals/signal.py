"""What a signal is: of the rollouts alone, of the two shared passes, or (``passes``) of passes of its own.

A new signal is one file with one class. A method puts the object into ``needs``; those in ``signals.table`` may
be named by a string as well, which the credit step resolves once. Here stand the signals that need no file: those
of the shared passes, and what the rollouts hold already.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gear_rl.engine import Engine
from gear_rl.rollouts import RolloutBatch, succeeds
from gear_rl.tensor.logits import Head, TokenStatistics, token_statistics
from gear_rl.types import Signal


class BatchSignal(Signal, ABC):
    """A signal that needs no forward pass: of the tokens, the text, the turns or the rewards.

    Subclasses are frozen dataclasses whose fields are their settings; one called ``success_reward``,
    ``answer_pattern`` or ``contexts`` (the privileged contexts as text) gets the run's value. The share of a
    completion that ends with each token:

    >>> @dataclass(frozen=True)
    ... class Place(BatchSignal):
    ...     name = "place"
    ...     def compute(self, batch, engine):
    ...         mask = batch.completions.mask
    ...         return torch.where(mask, mask.cumsum(-1) / mask.sum(-1, keepdim=True), 0.0)
    >>> names_of((Place(), "group_B"))
    ('place', 'group_B')
    """

    @abstractmethod
    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        """The signal of this process's completions; every process calls this, in the same order."""

    def with_run(self, run: Mapping[str, Any]) -> "BatchSignal":
        """The signal with the values of a run in the fields of their names."""
        own: Any = self
        return replace(own, **{field.name: run[field.name] for field in fields(own) if field.name in run})


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
"""Computes the signals of these names in one go over the vocabulary."""


@dataclass(frozen=True)
class FoldSignal(Signal):
    """A signal of the student's pass, the teacher's, or both: one number per token, made of their hidden states.

    All signals of a batch share these passes, and those with the same ``fold`` one call of it.
    """

    name: str
    fold: Fold
    student: bool = False
    teacher: bool = False

    @property
    def is_divergence(self) -> bool:
        """Whether it compares the two: it is 0 where the teacher is taken to agree."""
        return self.student and self.teacher


def names_of(needs: Sequence[str | Signal]) -> tuple[str, ...]:
    """Their names.

    >>> names_of(["divergence", TokenId()])
    ('divergence', 'token_id')
    """
    return tuple(dict.fromkeys(need if isinstance(need, str) else need.name for need in needs))


# Of the shared passes, in nats: ``p`` is the student's next-token distribution where the token was drawn, ``q``
# the teacher's, which sees the privileged context too.


def _statistics(names: Sequence[str], states: States) -> dict[str, Tensor]:
    """What one pass over the vocabulary gives."""
    if states.student_ND is None:
        return {"teacher_logprob": _teacher_alone(states).student_logprob}
    compared = "teacher_logprob" in names or "divergence" in names
    teacher_ND = states.teacher_ND if compared else None
    both = token_statistics(states.student_ND, states.token_N, states.head, teacher_ND, states.teacher_head)
    return {name: getattr(both, name) for name in names}


def _teacher_entropy(names: Sequence[str], states: States) -> dict[str, Tensor]:
    return {"teacher_entropy": _teacher_alone(states).student_entropy}


def _teacher_alone(states: States) -> TokenStatistics:
    """What one pass gives of the teacher, which takes the student's place."""
    assert states.teacher_ND is not None
    return token_statistics(states.teacher_ND, states.token_N, states.teacher_head or states.head)


STUDENT_LOGPROB = FoldSignal("student_logprob", _statistics, student=True)
"""log p of the sampled token."""
TEACHER_LOGPROB = FoldSignal("teacher_logprob", _statistics, teacher=True)
"""log q of the sampled token."""
STUDENT_ENTROPY = FoldSignal("student_entropy", _statistics, student=True)
"""Entropy of p."""
DIVERGENCE = FoldSignal("divergence", _statistics, student=True, teacher=True)
"""KL(p || q), the reverse KL."""
TEACHER_ENTROPY = FoldSignal("teacher_entropy", _teacher_entropy, teacher=True)
"""Entropy of q."""
FOLD_SIGNALS = STUDENT_LOGPROB, TEACHER_LOGPROB, STUDENT_ENTROPY, DIVERGENCE, TEACHER_ENTROPY


@dataclass(frozen=True)
class TokenId(BatchSignal):
    """The sampled token's number in the vocabulary; -1 where the mask is False. The same on every processor, so
    placebos draw their places from it."""

    name = "token_id"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return torch.where(batch.completions.mask, batch.completions.ids.long(), -1)


@dataclass(frozen=True)
class GroupB(BatchSignal):
    """Which prompt's group the completion belongs to; for methods that compare siblings. A completion that falls
    back, or that has no reward where rewards are read, has no siblings: its number is no prompt's."""

    name = "group_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return torch.tensor(batch.group, device=batch.completions.mask.device)


@dataclass(frozen=True)
class RewardB(BatchSignal):
    """The completion's reward, as the trainer weighs and sums it; 0 where it has none."""

    name = "reward_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        rewards = [reward or 0.0 for reward in batch.rewards]
        return torch.tensor(rewards, dtype=torch.float32, device=batch.advantage_B.device)


@dataclass(frozen=True)
class SuccessB(BatchSignal):
    """1 where the completion's reward is at least ``success_reward``, else 0."""

    name = "success_B"

    success_reward: float = 1.0

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        successes = [reward is not None and succeeds(reward, self.success_reward) for reward in batch.rewards]
        return torch.tensor(successes, device=batch.advantage_B.device).float()


@dataclass(frozen=True)
class RewardsBR(BatchSignal):
    """What each reward function gave, times its weight; 0 where it abstained."""

    name = "rewards_BR"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return batch.rewards_BR
