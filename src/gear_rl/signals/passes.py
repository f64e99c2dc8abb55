"""The student's forward pass, the teacher's beside it, and the signals that are made of both. Knows no trainer.

For engines that hold the weights where the credit step runs (TRL, a loop of one's own), and for the workers of
those that do not. Hidden states are taken from the model's own ``forward`` by a hook on its backbone, so that
whatever wraps the model (PEFT, DDP, FSDP 2, a patched forward) does its work; the head is applied in tiles
afterwards.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.engine import ForwardRequest
from gear_rl.model.forwards import evaluating, head_is_trained, head_of, hidden_states
from gear_rl.model.prefix import shared_prompts, states_after_shared_prompts
from gear_rl.model.served import ServedTeacher
from gear_rl.model.teacher import Teacher
from gear_rl.rollouts import Prompts, trained_width
from gear_rl.signals.signal import (
    DIVERGENCE,
    STUDENT_LOGPROB,
    TEACHER_LOGPROB,
    BatchSignal,
    Fold,
    FoldSignal,
    States,
)
from gear_rl.tensor.bucketed import bucketed_divergence
from gear_rl.tensor.logits import Head
from gear_rl.tensor.segments import since_segment_start
from gear_rl.types import Signal, TokenSignals

RowImages = Callable[[Int[Tensor, " N"], Int[Tensor, "N S"]], Mapping[str, Tensor]]
"""From some rows of a batch and ids that are shown of each to the model's arguments for their images."""


class KeptStates:
    """The hidden states that predict the True tokens of a mask, kept forward by forward.

    >>> states = KeptStates(torch.tensor([[True, False], [True, True]]))
    >>> for b, hidden in enumerate(([[1.0]], [[2.0], [3.0]])):
    ...     states.take(torch.tensor([b]), states.mask[b : b + 1], torch.tensor(hidden))
    >>> states(torch.tensor([1]), torch.tensor([[True, True]]))
    tensor([[2.],
            [3.]])
    """

    head: Head | None = None
    """The head of the model that they come from; None where it is the student's."""

    def __init__(self, mask: Bool[Tensor, "B T"]) -> None:
        self.mask = mask
        self._place = mask.flatten().cumsum(0).view(mask.shape) - 1
        self._hidden_ND: Tensor | None = None

    def take(
        self, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"], hidden_MD: Float[Tensor, "M D"]
    ) -> None:
        """Keep what a forward of these rows gave for their True tokens."""
        if self._hidden_ND is None:
            self._hidden_ND = hidden_MD.new_empty(int(self.mask.sum()), hidden_MD.shape[-1])
        self._hidden_ND[self._place[batch][:, : keep.shape[1]][keep]] = hidden_MD

    def __call__(self, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]) -> Float[Tensor, "M D"]:
        """The states of these tokens of some rows, row by row."""
        assert self._hidden_ND is not None
        return self._hidden_ND[self._place[batch][:, : keep.shape[1]][keep]]


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
    largest: Callable[[int], int] = int
    """Returns the maximum over all processes: with sharded weights every process must run equally many
    forwards."""
    teacher_model: nn.Module | None = None
    """Another model, over the same vocabulary, that is the teacher in place of this one with other weights."""
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
    """Wraps every direct use of the head's weights; sharded ones are gathered in it."""
    share_prompts: bool = True
    """Whether a prompt runs once for all completions that have it; not with sharded weights, nor with images."""
    images: RowImages | None = None
    """None without images."""

    def run(self, request: ForwardRequest, *, student_states: KeptStates | None = None) -> dict[str, Tensor]:
        """The signals of ``request.needs`` by name; 0 in rows that are not scored.

        ``student_states`` are those of a student's pass that has been run already. Raises ``ValueError`` for a
        signal that no forward pass makes.
        """
        folded = [signal for signal in request.needs if isinstance(signal, FoldSignal)]
        values = self._folded(request, folded, student_states) if folded else {}
        for signal in request.needs:
            if isinstance(signal, PassSignal):
                values[signal.name] = signal.compute(self, request)
            elif isinstance(signal, BatchSignal):
                raise ValueError(f"needs: {signal.name!r} is not made by a forward pass")
        return {signal.name: values[signal.name] for signal in request.needs}

    @torch.no_grad()
    def teacher_states(self, request: ForwardRequest, teacher: Prompts, num_batches: int = 0) -> KeptStates:
        """The teacher's states of the trained tokens, of the rows to score."""
        other = self.teacher_model
        own = self if other is None else replace(self, model=other, teacher_model=None, teacher=Teacher())
        states = KeptStates(request.completions.mask & request.scored_B[:, None])
        with evaluating(own.model):
            for batch, keep in own._batches(request, teacher, num_batches):
                hidden, states.head = own._taught(request, teacher, batch, keep, states.head)
                states.take(batch, keep, hidden)
        if other is not None:
            with (self.head_context or nullcontext)(other):
                head = head_of(other, self.temperature)  # an engine's reference may rest in the main memory
                if self.head_context is not None:
                    head = head.clone()  # what is gathered is divided again
            states.head = head.to(request.completions.ids.device)
        return states

    @torch.no_grad()
    def signals(
        self,
        wanted: Sequence[FoldSignal],
        request: ForwardRequest,
        teacher: Prompts | KeptStates | None,
        student_states: KeptStates | None,
        num_batches: int,
    ) -> TokenSignals:
        """The signals of every completion, in float32; a non-finite value is left in place."""
        completions, mask = request.completions, request.completions.mask
        target_ids = completions.ids if completions.target_ids is None else completions.target_ids
        values = {signal.name: torch.zeros_like(mask, dtype=torch.float32) for signal in wanted}
        reads_student, reads_teacher = any(s.student for s in wanted), any(s.teacher for s in wanted)
        head = teacher.head if isinstance(teacher, KeptStates) else None
        batched_by = teacher if isinstance(teacher, Prompts) else request.student
        with evaluating(self.model):
            for batch, keep in self._batches(request, batched_by, num_batches):
                student_ND = teacher_ND = None
                if reads_student and student_states is not None:
                    student_ND = student_states(batch, keep)
                elif reads_student:
                    student_ND = self._hidden(request, request.student, batch, keep)
                if isinstance(teacher, KeptStates):
                    teacher_ND = teacher(batch, keep)
                elif teacher is not None and reads_teacher:
                    teacher_ND, head = self._taught(request, teacher, batch, keep, head)
                token = target_ids[batch][:, : keep.shape[1]][keep]
                row, column = keep.nonzero(as_tuple=True)
                for name, value in self._statistics(wanted, token, student_ND, teacher_ND, head).items():
                    values[name][batch[row], column] = value
        return TokenSignals(mask=mask, values=values)

    def _folded(
        self,
        request: ForwardRequest,
        signals: Sequence[FoldSignal],
        student_states: KeptStates | None,
    ) -> dict[str, Tensor]:
        """The signals of the student's pass and of the teacher's; with a contrast of two teachers' passes."""
        # Processes that share a sharded model must run equally many forwards. Surplus ones keep no token.
        num_batches = self.largest(-(-int(request.scored_B.sum()) // self.batch_size))
        taught = [signal for signal in signals if signal.teacher]
        if TEACHER_LOGPROB in signals and (request.skip_first_tokens or len(request.teachers) > 1):
            signals = [*signals, STUDENT_LOGPROB]  # (at most twice) what a log-ratio of 0 is measured from
        if taught and isinstance(self.teacher, ServedTeacher):
            scored = self._served(request, signals, self.teacher, student_states, num_batches)
        else:
            shown: Sequence[Prompts | KeptStates | None] = request.teachers[: None if taught else 1] or [None]
            if self.teacher_model is not None and taught:
                shown = [self.teacher_states(request, prompts, num_batches) for prompts in request.teachers]
            scored = [
                self.signals(taught if number else signals, request, prompts, student_states, num_batches)
                for number, prompts in enumerate(shown)
            ]
        divergences = [signal.name for signal in signals if signal.is_divergence]
        right = scored[0] if len(scored) == 1 else contrast_signals(scored[0], scored[1], divergences)
        return dict(skipping_first(right, request.skip_first_tokens, divergences).values)

    def _served(
        self,
        request: ForwardRequest,
        wanted: Sequence[FoldSignal],
        teacher: ServedTeacher,
        student_states: KeptStates | None,
        num_batches: int,
    ) -> list[TokenSignals]:
        """The signals for each teacher's prompts, with a teacher that only gives log-probs of single tokens."""
        check_served(wanted, teacher.top_k)
        measures = DIVERGENCE in wanted
        if student_states is None and measures:
            student_states = self._student_states(request, num_batches)
        own = [signal for signal in wanted if not signal.teacher]
        base = self.signals(own, request, None, student_states, num_batches)
        scored, unserved = list[TokenSignals](), 0
        for prompts in request.teachers:
            logprob, top_id, top = teacher.scores(prompts, request.completions, request.scored_B)
            unserved = max(unserved, teacher.unserved)
            values = dict(base.values)
            if TEACHER_LOGPROB in wanted:
                values["teacher_logprob"] = torch.where(base.mask, logprob, 0.0)
            if measures:
                assert student_states is not None
                values["divergence"] = torch.zeros_like(logprob)
                for batch, keep in self._batches(request, request.student, num_batches):
                    row, column = keep.nonzero(as_tuple=True)
                    places = batch[row], column
                    with (self.head_context or nullcontext)(self.model):
                        head = head_of(self.model, self.temperature)
                        found = bucketed_divergence(
                            student_states(batch, keep), head, top_id[places], top[places]
                        )
                    values["divergence"][places] = torch.where(logprob[places].isnan(), torch.nan, found)
            scored.append(replace(base, values=values))
        teacher.unserved = unserved
        return scored

    @torch.no_grad()
    def _student_states(self, request: ForwardRequest, num_batches: int) -> KeptStates:
        states = KeptStates(request.completions.mask & request.scored_B[:, None])
        with evaluating(self.model):
            for batch, keep in self._batches(request, request.student, num_batches):
                states.take(batch, keep, self._hidden(request, request.student, batch, keep))
        return states

    def _batches(
        self, request: ForwardRequest, prompts: Prompts, num_batches: int
    ) -> Generator[tuple[Int[Tensor, " N"], Bool[Tensor, "N W"]]]:
        """The rows to score in batches, each with its trained tokens; none of a surplus batch.

        Those of one prompt together where sharing it pays, else by length, so that short rows are not padded to
        long ones. The longest come first: what runs out of memory does so at once.
        """
        mask, batch_size = request.completions.mask, self.batch_size
        index = request.scored_B.nonzero()[:, 0]
        if len(index) > batch_size:
            length = torch.where(mask[index], torch.arange(mask.shape[1], device=mask.device) + 1, 0).amax(-1)
            order = length.argsort(descending=True, stable=True)
            if self.share_prompts:
                own = prompts.take(index)
                plan = shared_prompts(own.ids_BP, own.attention_BP, int(length.max()))
                if plan is not None:
                    order = torch.tensor(plan[1], device=mask.device).argsort(stable=True)
            index = index[order]
        batches = torch.split(index, batch_size) if len(index) else ()
        for batch in batches:
            yield batch, mask[batch, : self._width_of(mask[batch])]
        for _ in range(num_batches - len(batches) if len(mask) else 0):
            yield index.new_zeros(1), torch.zeros_like(mask[:1, : self._width_of(mask[:1])])

    def _width_of(self, mask: Bool[Tensor, "N T"]) -> int:
        # An image in a tool's answer needs its tokens, also where no trained one comes after it.
        return trained_width(mask) if self.images is None else mask.shape[1]

    def _statistics(
        self,
        wanted: Sequence[FoldSignal],
        token_M: Int[Tensor, " M"],
        student_MD: Float[Tensor, "M D"] | None,
        teacher_ME: Float[Tensor, "M E"] | None,
        teacher_head: Head | None,
    ) -> dict[str, Float[Tensor, " M"]]:
        names: dict[Fold, list[str]] = {}
        for signal in wanted:
            names.setdefault(signal.fold, []).append(signal.name)
        values: dict[str, Tensor] = {}
        with (self.head_context or nullcontext)(self.model):
            states = States(
                token_M, student_MD, head_of(self.model, self.temperature), teacher_ME, teacher_head
            )
            for fold, own in names.items():
                values |= fold(own, states)
        return values

    def _taught(
        self,
        request: ForwardRequest,
        prompts: Prompts,
        batch: Int[Tensor, " N"],
        keep: Bool[Tensor, "N W"],
        head: Head | None,
    ) -> tuple[Float[Tensor, "M D"], Head | None]:
        """The states with the teacher's weights, and its head (``head`` if known) if not the student's."""
        with self.teacher.weights(self.model):
            hidden = self._hidden(request, prompts, batch, keep)
            if self.teacher.lends and head is None and head_is_trained(self.model):
                # A copy: once the weights are handed back, the parameter is the student's again.
                with (self.head_context or nullcontext)(self.model):
                    head = head_of(self.model, self.temperature).clone()
        return hidden, head

    def _hidden(
        self,
        request: ForwardRequest,
        prompts: Prompts,
        batch: Int[Tensor, " N"],
        keep: Bool[Tensor, "N W"],
    ) -> Float[Tensor, "M D"]:
        """The states that predict the tokens to keep."""
        own, width, completions = prompts.trimmed(batch), keep.shape[1], request.completions
        ids, attention = completions.ids[batch, :width], completions.attention[batch, :width]
        hidden = None
        if self.share_prompts:
            parts = own.ids_BP, own.attention_BP, ids, attention
            hidden = states_after_shared_prompts(self.model, *parts)
        if hidden is None:
            both = torch.cat([own.ids_BP, ids], 1), torch.cat([own.attention_BP, attention], 1)
            images = self.images and self.images(batch, both[0])
            hidden = hidden_states(self.model, *both, num_tokens=width, images=images)
        return hidden[keep]  # a copy, so that the prompt's hidden states are freed


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
        # The reference is a teacher that sees what the student sees.
        own = replace(passes, teacher=passes.reference, teacher_model=None, share_prompts=False)
        changes = {"needs": (TEACHER_LOGPROB,), "teachers": [request.student], "skip_first_tokens": 0}
        return own.run(replace(request, **changes))["teacher_logprob"]


def check_served(signals: Sequence[Signal], top_k: int, method: str = "it") -> None:
    """Raise ``ValueError`` for a signal that log-probs of single tokens cannot give.

    >>> check_served([DIVERGENCE], top_k=0, method="gear")
    Traceback (most recent call last):
    ValueError: teacher_url: 'gear' needs 'divergence', an exact one over the whole vocabulary, and a server gives
    log-probs of single tokens; set teacher_top_k for one from the likeliest tokens, or take a method such as rlsd
    """
    for signal in signals:
        if not signal.teacher or signal == TEACHER_LOGPROB or (signal == DIVERGENCE and top_k > 0):
            continue
        fix = "take a method that reads teacher_logprob alone, such as rlsd"
        if signal == DIVERGENCE:
            fix = "set teacher_top_k for one from the likeliest tokens, or take a method such as rlsd"
        kind = "an exact one over the whole vocabulary" if signal == DIVERGENCE else "made with its weights"
        raise ValueError(
            f"teacher_url: {method!r} needs {signal.name!r}, {kind}, and a server gives log-probs of single "
            f"tokens; {fix}"
        )


def contrast_signals(
    right: TokenSignals, wrong: TokenSignals, divergences: Sequence[str] = ("divergence",)
) -> TokenSignals:
    """The signals of the right context less those of the wrong one; what both hints cause alike cancels.

    A divergence is the difference of the two, not below 0. The teacher's log-prob is the student's plus the
    difference of the two teachers', so that the log-ratio becomes log T+ - log T- (CEPO, arXiv:2605.19436; RLCSD,
    arXiv:2606.11709); it needs ``student_logprob``. The teacher's entropy stays that of the right context.

    >>> mask = torch.tensor([[True, True]])
    >>> right = TokenSignals(mask=mask, divergence=torch.tensor([[2.0, 0.5]]))
    >>> contrast_signals(right, TokenSignals(mask=mask, divergence=torch.tensor([[0.5, 1.0]]))).divergence
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
    signals: TokenSignals, num_tokens: int, divergences: Sequence[str] = ("divergence",)
) -> TokenSignals:
    """The same signals, with the teacher agreeing with the student on the first tokens of every turn.

    There the teacher often diverges in form alone (a thinking block opens or does not). Every
    divergence is 0 there and the teacher's log-prob the student's, which needs ``student_logprob``; the entropies
    stay.

    >>> mask = torch.tensor([[True, True, False, True]])
    >>> skipping_first(TokenSignals(mask=mask, divergence=torch.tensor([[3.0, 1.0, 0.0, 2.0]])), 1).divergence
    tensor([[0., 1., 0., 0.]])
    """
    if num_tokens == 0:
        return signals
    skipped = signals.mask & (since_segment_start(signals.turn_id) < num_tokens)
    changes: dict[str, Any] = {
        name: signals.get(name).masked_fill(skipped, 0.0) for name in divergences if name in signals
    }
    if "teacher_logprob" in signals:
        own = signals.get("student_logprob")
        changes["teacher_logprob"] = torch.where(skipped, own, signals.teacher_logprob)
    return replace(signals, **changes)
