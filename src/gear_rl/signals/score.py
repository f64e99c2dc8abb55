"""The student's forward pass and the teacher's beside it, and the signals that are made of both.

Hidden states are taken from the model's own ``forward`` by a hook on its backbone, so that whatever wraps the
model (PEFT, DDP, FSDP 2, a patched forward) does its work; the head is applied in tiles afterwards.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.batch import Completions, Prompts, trained_width
from gear_rl.signals.forwards import evaluating, head_is_trained, head_of, hidden_states
from gear_rl.signals.prefix import shared_prompts, states_after_shared_prompts
from gear_rl.signals.signal import Fold, FoldSignal, States
from gear_rl.tensor.logits import Head
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import TokenSignals


class KeptStates:
    """The hidden states that predict the True tokens of a mask, kept forward by forward.

    >>> states = KeptStates(torch.tensor([[True, False], [True, True]]))
    >>> for b, hidden in enumerate(([[1.0]], [[2.0], [3.0]])):
    ...     states.take(torch.tensor([b]), states.mask[b : b + 1], torch.tensor(hidden))
    >>> states.rows(torch.tensor([1]))(torch.tensor([0]), torch.tensor([[True, True]]))
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

    def rows(self, rows: Int[Tensor, " N"]) -> "KeptStates":
        """The same of some rows; nothing is copied."""
        some = KeptStates(self.mask[rows])
        some._place, some._hidden_ND, some.head = self._place[rows], self._hidden_ND, self.head
        return some

    def __call__(self, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]) -> Float[Tensor, "M D"]:
        """The states of these tokens of some rows, row by row."""
        assert self._hidden_ND is not None
        return self._hidden_ND[self._place[batch][:, : keep.shape[1]][keep]]


@dataclass(kw_only=True)
class Scorer:
    """The passes over some completions with a model at its present weights, dropout off; see ``ModelPasses``."""

    model: nn.Module
    completions: Completions
    row_B: Bool[Tensor, " B"]
    """Rows where it is False are not computed and hold 0."""
    temperature: float = 1.0
    teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None = None
    """Lends the model the teacher's weights; None where they are the student's."""
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
    batch_size: int = 8
    num_batches: int = 0
    """The least number of batches: processes that share a sharded model must run equally many forwards. Surplus
    ones keep no token."""
    share_prompts: bool = False
    teacher_head: Head | None = field(default=None, init=False)

    @torch.no_grad()
    def signals(
        self,
        wanted: Sequence[FoldSignal],
        student: Prompts,
        teacher: Prompts | KeptStates | None = None,
        student_states: KeptStates | None = None,
    ) -> TokenSignals:
        """The signals of every completion, in float32; a non-finite value is left in place.

        ``student_states``, and states in place of the teacher's prompts, are those of a pass that has been run.
        """
        mask = self.completions.mask
        values = {signal.name: torch.zeros_like(mask, dtype=torch.float32) for signal in wanted}
        reads_student, reads_teacher = any(s.student for s in wanted), any(s.teacher for s in wanted)
        with evaluating(self.model):
            for batch, keep in self._batches(teacher if isinstance(teacher, Prompts) else student):
                student_ND = teacher_ND = None
                if reads_student and student_states is None:
                    student_ND = self._hidden(student, batch, keep)
                elif reads_student and student_states is not None:
                    student_ND = student_states(batch, keep)
                if isinstance(teacher, KeptStates):
                    teacher_ND, self.teacher_head = teacher(batch, keep), teacher.head
                elif teacher is not None and reads_teacher:
                    teacher_ND = self._hidden(teacher, batch, keep, lent=True)
                row, column = keep.nonzero(as_tuple=True)
                found = self._statistics(wanted, batch, keep, student_ND, teacher_ND)
                for name, value in found.items():
                    values[name][batch[row], column] = value
        return TokenSignals(mask=mask, turn_id=turn_ids(mask), values=values)

    @torch.no_grad()
    def teacher_states(self, teacher: Prompts) -> KeptStates:
        """The teacher's pass by itself, for the signals of the same completions and rows, or fewer.

        Call it before the student's forward: lending weights later writes into what its graph has saved. Only
        states of trained tokens are kept.
        """
        kept = KeptStates(self.completions.mask & self.row_B[:, None])
        with evaluating(self.model):
            for batch, keep in self._batches(teacher):
                kept.take(batch, keep, self._hidden(teacher, batch, keep, lent=True))
        kept.head = self.teacher_head
        return kept

    def _batches(self, prompts: Prompts) -> Generator[tuple[Int[Tensor, " N"], Bool[Tensor, "N W"]]]:
        """The rows to score in batches, each with its trained tokens; none of a surplus batch.

        Those of one prompt together where sharing it pays, else by length, so that short rows are not padded to
        long ones. The longest come first: what runs out of memory does so at once.
        """
        mask, index, batch_size = self.completions.mask, self.row_B.nonzero()[:, 0], self.batch_size
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
            yield batch, mask[batch, : trained_width(mask[batch])]
        for _ in range(self.num_batches - len(batches) if len(mask) else 0):
            yield index.new_zeros(1), torch.zeros_like(mask[:1, : trained_width(mask[:1])])

    def _statistics(
        self,
        wanted: Sequence[FoldSignal],
        batch: Int[Tensor, " N"],
        keep: Bool[Tensor, "N W"],
        student_MD: Float[Tensor, "M D"] | None,
        teacher_ME: Float[Tensor, "M E"] | None,
    ) -> dict[str, Float[Tensor, " M"]]:
        asked = self.completions.ids if self.completions.asked is None else self.completions.asked
        token = asked[batch][:, : keep.shape[1]][keep]
        names: dict[Fold, list[str]] = {}
        for signal in wanted:
            names.setdefault(signal.fold, []).append(signal.name)
        values: dict[str, Tensor] = {}
        with (self.head_context or nullcontext)(self.model):
            head = head_of(self.model, self.temperature)
            states = States(token, student_MD, head, teacher_ME, self.teacher_head)
            for fold, own in names.items():
                values |= fold(own, states)
        return values

    def _hidden(
        self, prompts: Prompts, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"], lent: bool = False
    ) -> Float[Tensor, "M D"]:
        """The states that predict the tokens to keep, with the teacher's weights where they are to be lent."""
        if not lent or self.teacher_weights is None:
            return self._passed(prompts, batch, keep)
        with self.teacher_weights(self.model):
            hidden = self._passed(prompts, batch, keep)
            if self.teacher_head is None and head_is_trained(self.model):
                # A copy: once the weights are handed back, the parameter is the student's again.
                with (self.head_context or nullcontext)(self.model):
                    self.teacher_head = head_of(self.model, self.temperature).clone()
        return hidden

    def _passed(
        self, prompts: Prompts, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]
    ) -> Float[Tensor, "M D"]:
        own, width = prompts.trimmed(batch), keep.shape[1]
        ids, attention = self.completions.ids[batch, :width], self.completions.attention[batch, :width]
        hidden = None
        if self.share_prompts:
            parts = own.ids_BP, own.attention_BP, ids, attention
            hidden = states_after_shared_prompts(self.model, *parts)
        if hidden is None:
            both = torch.cat([own.ids_BP, ids], 1), torch.cat([own.attention_BP, attention], 1)
            hidden = hidden_states(self.model, *both, num_tokens=width)
        return hidden[keep]  # a copy, so that the prompt's hidden states are freed
