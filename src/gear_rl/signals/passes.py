"""The forward passes that a ``ForwardRequest`` wants, with a model that is in this process. Knows no trainer.

For engines that hold the weights where the credit step runs (TRL, a loop of one's own), and for the workers of
those that do not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gear_rl.signals.batch import ForwardRequest, Prompts
from gear_rl.signals.forwards import head_of
from gear_rl.signals.prefix import shared_prompts
from gear_rl.signals.score import KeptStates, Scorer
from gear_rl.signals.signal import (
    DIVERGENCES,
    STUDENT_LOGPROB,
    TEACHER_LOGPROB,
    BatchSignal,
    FoldSignal,
    needs_teacher,
    signals_of,
)
from gear_rl.signals.teacher import Teacher
from gear_rl.tensor.segments import segment_starts, turn_ids
from gear_rl.types import Signal, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPasses:
    """A model, its teacher, and how its forward passes are run."""

    model: nn.Module
    pad_id: int
    teacher: Teacher
    reference: Teacher
    """Holds the weights that the run began with; only for ``reference_logprob``."""
    temperature: float = 1.0
    """Of the sampling: logits are divided by it."""
    batch_size: int = 8
    """Completions in a forward pass."""
    seed: int = 0
    """Of the noise on embeddings, with the step added."""
    skip_first_tokens: int = 0
    """Tokens at the start of every turn where the teacher is taken to agree."""
    largest: Callable[[int], int] = int
    """Returns the maximum over all processes: with sharded weights every process must run equally many
    forwards."""
    teacher_model: nn.Module | None = None
    """Another model, over the same vocabulary, that is the teacher in place of this one with other weights."""
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
    """Wraps every direct use of the head's weights; sharded ones are gathered in it."""
    share_prompts: bool = True
    """Whether a prompt runs once for all completions that have it; not where weights are sharded."""

    def run(
        self,
        request: ForwardRequest,
        *,
        student_states: KeptStates | None = None,
        teacher_states: KeptStates | None = None,
    ) -> dict[str, Tensor]:
        """The signals of ``request.needs`` by name; 0 in rows that are not scored.

        ``student_states`` and ``teacher_states`` are hidden states of passes that have been run already. Raises
        ``ValueError`` for a signal that no forward pass makes.
        """
        signals = signals_of(request.needs)
        folded = [signal for signal in signals if isinstance(signal, FoldSignal)]
        values = self._folded(request, folded, student_states, teacher_states) if folded else {}
        for signal in signals:
            if isinstance(signal, PassSignal):
                values[signal.name] = signal.compute(self, request)
            elif isinstance(signal, BatchSignal):
                raise ValueError(f"needs: {signal.name!r} is not made by a forward pass")
        return {signal.name: values[signal.name] for signal in signals}

    def teacher_pass(self, request: ForwardRequest) -> KeptStates | None:
        """The teacher's pass of ``run`` by itself; None where no signal needs one. For a request without
        contrast."""
        if not needs_teacher(request.needs):
            return None
        [teacher] = request.teachers
        return self._teacher_states(self.scorer(request, self.teacher, num_batches=0), teacher)

    def scorer(self, request: ForwardRequest, teacher: Teacher, num_batches: int | None = None) -> Scorer:
        """The passes over the rows to score, with these weights for the teacher.

        Every process must call this if ``num_batches`` is None: then it is the largest of all.
        """
        if num_batches is None:
            num_batches = self.largest(-(-int(request.scored_B.sum()) // self.batch_size))
        return Scorer(
            model=self.model,
            completions=request.completions,
            row_B=request.scored_B,
            temperature=self.temperature,
            teacher_weights=teacher.weights if teacher.lends else None,
            head_context=self.head_context,
            batch_size=self.batch_size,
            num_batches=num_batches,
            share_prompts=self.share_prompts,
        )

    def _teacher_states(self, scorer: Scorer, teacher: Prompts) -> KeptStates:
        other = self.teacher_model
        if other is None:
            return scorer.teacher_states(teacher)
        states = replace(scorer, model=other, teacher_weights=None).teacher_states(teacher)
        head = head_of(other, self.temperature)  # an engine's reference may rest in the main memory
        states.head = replace(head, weight_VD=head.weight_VD.to(scorer.completions.ids.device))
        return states

    def _folded(
        self,
        request: ForwardRequest,
        signals: Sequence[FoldSignal],
        student_states: KeptStates | None,
        teacher: KeptStates | None,
    ) -> dict[str, Tensor]:
        """The signals of the student's pass and of the teacher's; with a contrast of two teachers' passes."""
        scorer, skip = self.scorer(request, self.teacher), self.skip_first_tokens
        taught = [signal for signal in signals if signal.teacher]
        if TEACHER_LOGPROB in signals and (skip or len(request.teachers) > 1):
            signals = [*signals, STUDENT_LOGPROB]  # (at most twice) what a log-ratio of 0 is measured from
        shown: Sequence[Prompts | KeptStates | None] = request.teachers[: None if taught else 1] or [None]
        if teacher is not None:
            shown = [teacher]
        elif self.teacher_model is not None and taught:
            shown = [self._teacher_states(scorer, prompts) for prompts in request.teachers]
        scored = [
            scorer.signals(taught if number else signals, request.student, prompts, student_states)
            for number, prompts in enumerate(shown)
        ]
        divergences = [signal.name for signal in signals if signal.is_divergence]
        right = scored[0] if len(scored) == 1 else contrasted(scored[0], scored[1], divergences)
        return dict(skipping_first(right, skip, divergences).values)


class PassSignal(Signal, ABC):
    """A signal that is made by forward passes of its own, where the weights are.

    Subclasses are frozen dataclasses whose fields are their settings.
    """

    @property
    def reads(self) -> tuple[BatchSignal, ...]:
        """What it reads of the rollouts beside their tokens: ``ForwardRequest.inputs`` has each by its name."""
        return ()

    @abstractmethod
    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        """The signal; 0 in rows that are not scored."""


@dataclass(frozen=True)
class ReferenceLogprob(PassSignal):
    """log pi_ref(y_t | x, y_<t) at the weights that the run began with, nats."""

    name = "reference_logprob"

    def compute(self, passes: ModelPasses, request: ForwardRequest) -> Tensor:
        scorer = replace(passes.scorer(request, passes.reference), share_prompts=False)
        own = scorer.signals([TEACHER_LOGPROB], request.student, request.student)
        return own.get("teacher_logprob")


def shares_prompts(request: ForwardRequest) -> bool:
    """Whether the teacher's prompts are worth sharing among the completions that are scored."""
    if not request.teachers:
        return False
    scored_B, teacher = request.scored_B, request.teachers[0]
    longest = int(request.completions.mask[scored_B].sum(-1).max()) if scored_B.any() else 0
    plan = shared_prompts(teacher.ids_BP[scored_B], teacher.attention_BP[scored_B], num_tokens=longest)
    return plan is not None


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
