"""The forward passes that a ``ForwardRequest`` wants, with a model that is in this process. Knows no trainer.

For engines that hold the weights where the credit step runs (TRL, a loop of one's own), and for the workers of
those that do not.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.config import CreditConfig
from gear_rl.signals.confidence import answer_confidence, confidence_batches
from gear_rl.signals.contrast import contrasted, skipping_first
from gear_rl.signals.forwards import head_of
from gear_rl.signals.prefix import shared_prompts
from gear_rl.signals.saliency import (
    SALIENCY_SIGNALS,
    Layer,
    LossSpan,
    Readout,
    num_saliency_batches,
    saliency,
)
from gear_rl.signals.score import (
    Prompts,
    StudentStates,
    TeacherStates,
    needs_teacher,
    score,
    teacher_states,
)
from gear_rl.signals.teacher import LiveTeacher, Teacher
from gear_rl.signals.transport import num_transport_batches, transport_distances
from gear_rl.types import signal_of, signals_where

PASS_SIGNALS = frozenset(signals_where(lambda signal: signal.costs_passes))
"""Every signal that ``ModelPasses`` computes."""


def _same(count: int) -> int:
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPasses:
    """A model, its teacher, and how its forward passes are run."""

    model: nn.Module
    config: CreditConfig
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
    largest: Callable[[int], int] = _same
    """The largest of the numbers that all processes call this with: where weights are sharded, every process
    must run as many forwards as the one that has most."""
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
        student_states: StudentStates | None = None,
        teacher_states: TeacherStates | None = None,
    ) -> dict[str, Tensor]:
        """The signals of ``request.needs``; 0 in rows that are not scored.

        ``student_states`` and ``teacher_states`` are hidden states of passes that have been run already.
        """
        count = self._num_batches(request)
        values = self._compared(request, count, student_states, teacher_states)
        if "reference_logprob" in request.needs:
            values["reference_logprob"] = self._reference_logprob(request, count)
        values |= self._saliency(request)
        if "answer_confidence" in request.needs:
            values["answer_confidence"] = self._confidence(request)
        if "transport_distance" in request.needs:
            values["transport_distance"] = self._transport(request)
        return {name: values[name] for name in request.needs}

    def teacher_pass(self, request: ForwardRequest) -> TeacherStates | None:
        """The teacher's pass of ``run`` by itself; None where no signal needs one. For a request without
        contrast."""
        if not needs_teacher(request.needs):
            return None
        [teacher] = request.teachers
        return self._teacher_states(request, teacher, 0)

    def student_pass(self, request: ForwardRequest) -> StudentStates:
        """The student's pass of ``run`` by itself, for who has several teachers to compare it with."""
        return teacher_states(
            self.model,
            request.completions,
            request.student,
            row_B=request.scored_B,
            batch_size=self.batch_size,
            num_batches=self._num_batches(request),
            share_prompts=self.share_prompts,
        ).hidden

    def _num_batches(self, request: ForwardRequest) -> int:
        return self.largest(-(-int(request.scored_B.sum()) // self.batch_size))

    def _teacher_states(self, request: ForwardRequest, teacher: Prompts, count: int) -> TeacherStates:
        other = self.teacher_model
        states = teacher_states(
            self.model if other is None else other,
            request.completions,
            teacher,
            temperature=self.temperature,
            teacher_weights=self._lent_weights if other is None else None,
            head_context=self.head_context,
            row_B=request.scored_B,
            batch_size=self.batch_size,
            num_batches=count,
            share_prompts=self.share_prompts,
        )
        return states if other is None else replace(states, head=head_of(other, self.temperature))

    def _compared(
        self,
        request: ForwardRequest,
        count: int,
        student_states: StudentStates | None,
        teacher: TeacherStates | None,
    ) -> dict[str, Tensor]:
        """The signals of the student's pass, and of the teacher's beside it."""
        needs, skip = request.needs, self.config.teacher_skip_first_tokens
        if (
            "teacher_logprob" in needs
            and "student_logprob" not in needs
            and (skip or len(request.teachers) > 1)
        ):
            needs = (*needs, "student_logprob")  # what a log-ratio of 0 is measured from
        needs = tuple(name for name in needs if signal_of(name).made_by == "passes")
        shown: Sequence[Prompts | TeacherStates | None] = request.teachers or [None]
        if self.teacher_model is not None and teacher is None and needs_teacher(needs):
            shown = [self._teacher_states(request, prompts, count) for prompts in request.teachers]
        passes = [
            score(
                self.model,
                request.completions,
                request.student,
                prompts,
                needs=needs if i == 0 else [name for name in needs if signal_of(name).teacher],
                teacher_weights=self._lent_weights,
                student_states=student_states,
                share_prompts=self.share_prompts,
                num_batches=count,
                **self._options(request),
                **self._head(),
            )
            for i, prompts in enumerate(shown if teacher is None else [teacher])
        ]
        signals = skipping_first(passes[0] if len(passes) == 1 else contrasted(*passes), skip)
        return {name: signals.get(name) for name in needs}

    def _reference_logprob(self, request: ForwardRequest, count: int) -> Tensor:
        own = score(
            self.model,
            request.completions,
            request.student,
            request.student,
            needs=["teacher_logprob"],
            teacher_weights=self.reference.weights,
            num_batches=count,
            **self._options(request),
            **self._head(),
        )
        return own.get("teacher_logprob")

    def _saliency(self, request: ForwardRequest) -> dict[str, Tensor]:
        needs = [name for name in SALIENCY_SIGNALS if name in request.needs]
        if not needs:
            return {}
        assert request.answer_region is not None
        count = num_saliency_batches(request.answer_region, needs, request.scored_B, self.batch_size)
        return saliency(
            self.model,
            request.completions,
            request.student,
            request.answer_region,
            needs=needs,
            pad_id=self.pad_id,
            readout=cast(Readout, self.config.saliency_readout),
            layer=cast(Layer, self.config.saliency_layer),
            loss_span=cast(LossSpan, self.config.saliency_span),
            noise_std=self.config.saliency_noise,
            seed=self.seed + request.step,
            num_batches=self.largest(count),
            **self._options(request),
            **self._head(),
        )

    def _confidence(self, request: ForwardRequest) -> Tensor:
        mask, answers = request.completions.mask, request.answers
        count = confidence_batches(mask, answers, request.scored_B, self.batch_size)
        return answer_confidence(
            self.model,
            request.completions,
            request.student,
            answers,
            num_batches=self.largest(count),
            **self._options(request),
            **self._head(),
        )

    def _transport(self, request: ForwardRequest) -> Tensor:
        assert request.group_B is not None and request.succeeded_B is not None
        options = self._options(request)
        mask, group_B, succeeded_B = request.completions.mask, request.group_B, request.succeeded_B
        return transport_distances(
            self.model,
            request.completions,
            request.student,
            group_B,
            succeeded_B,
            num_batches=self.largest(num_transport_batches(mask, group_B, succeeded_B, **options)),
            window_tokens=self.config.transport_window_tokens,
            stride_tokens=self.config.transport_stride_tokens,
            **options,
        )

    def _options(self, request: ForwardRequest) -> dict[str, Any]:
        return {"row_B": request.scored_B, "batch_size": self.batch_size}

    def _head(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "head_context": self.head_context}

    @property
    def _lent_weights(self) -> Callable[[nn.Module], AbstractContextManager[None]] | None:
        return None if isinstance(self.teacher, LiveTeacher) else self.teacher.weights


def shares_prompts(request: ForwardRequest) -> bool:
    """Whether the teacher's prompts are worth sharing among the completions that are scored."""
    if not request.teachers:
        return False
    scored_B, teacher = request.scored_B, request.teachers[0]
    longest = int(request.completions.mask[scored_B].sum(-1).max()) if scored_B.any() else 0
    plan = shared_prompts(teacher.ids_BP[scored_B], teacher.attention_BP[scored_B], num_tokens=longest)
    return plan is not None
