"""The student's forward pass and the teacher's beside it, and the signals that are made of both.

Hidden states are taken from the model's own ``forward`` by a hook on its backbone, so that whatever wraps the
model (PEFT, DDP, FSDP 2, a patched forward) does its work; the head is applied in tiles afterwards.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.batch import Completions, Prompts
from gear_rl.signals.folds import FOLD_SIGNALS
from gear_rl.signals.forwards import captured_forward, evaluating, head_is_trained, head_of, hidden_states
from gear_rl.signals.prefix import shared_prompts, states_after_shared_prompts
from gear_rl.signals.signal import Fold, FoldSignal, States, signals_of
from gear_rl.tensor.logits import Head, scattered
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Signal, TokenSignals

StudentStates = Callable[[Int[Tensor, " N"], Bool[Tensor, "N T"]], Float[Tensor, "M D"]]
"""Given rows and which of their tokens: the student's hidden states that predict these tokens, row by row, out of
a forward that somebody else ran at the same weights."""


class KeptStates:
    """The hidden states that predict the True tokens of a mask, kept forward by forward; a ``StudentStates``.

    >>> states = KeptStates(torch.tensor([[True, False], [True, True]]))
    >>> for b, hidden in enumerate(([[1.0]], [[2.0], [3.0]])):
    ...     states.take(torch.tensor([b]), states.mask[b : b + 1], torch.tensor(hidden))
    >>> states.rows(torch.tensor([1]))(torch.tensor([0]), torch.tensor([[True, True]]))
    tensor([[2.],
            [3.]])
    """

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
        some._place, some._hidden_ND = self._place[rows], self._hidden_ND
        return some

    def __call__(self, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]) -> Float[Tensor, "M D"]:
        if self._hidden_ND is None:
            raise ValueError("states: no forward was kept")
        return self._hidden_ND[self._place[batch][:, : keep.shape[1]][keep]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherStates:
    """A teacher's pass that was run ahead of the signals: see ``teacher_states``.

    >>> states = TeacherStates(hidden=KeptStates(torch.ones(3, 2, dtype=torch.bool)), head=None)
    >>> states.rows(torch.tensor([0, 2])).hidden.mask.shape
    torch.Size([2, 2])
    """

    hidden: KeptStates
    head: Head | None
    """The teacher's own; None where it is the student's."""

    def rows(self, rows: Int[Tensor, " N"]) -> "TeacherStates":
        """The same of some rows."""
        return TeacherStates(hidden=self.hidden.rows(rows), head=self.head)


@dataclass(kw_only=True)
class Scorer:
    """The passes over some completions with a model at its present weights, dropout off."""

    model: nn.Module
    completions: Completions
    row_B: Bool[Tensor, " B"] | None = None
    """Rows where it is False are not computed and hold 0; None computes every row."""
    temperature: float = 1.0
    """Of the sampling: logits are divided by it."""
    teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None = None
    """Lends the model the teacher's weights; None where they are the student's."""
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
    """Wraps every direct use of the head's weights; sharded ones are gathered in it."""
    batch_size: int = 8
    num_batches: int = 0
    """The least number of batches: processes that share a sharded model must run equally many forwards. Surplus
    ones are dropped."""
    share_prompts: bool = False
    """Runs a prompt once for all rows that have it, where that pays; not for a sharded model."""
    teacher_head: Head | None = field(default=None, init=False)

    @torch.no_grad()
    def signals(
        self,
        needs: Sequence[str | Signal],
        student: Prompts,
        teacher: Prompts | TeacherStates | None = None,
        student_states: StudentStates | None = None,
    ) -> TokenSignals:
        """The signals of every completion, in float32; ``student_states`` are read in place of a student pass.

        A non-finite value is left in place. Raises ``ValueError`` for a signal that these two passes do not make,
        or for a teacher's signal without prompts.
        """
        wanted = [signal for signal in signals_of(needs) if isinstance(signal, FoldSignal)]
        if len(wanted) < len(signals_of(needs)):
            known = ", ".join(signal.name for signal in FOLD_SIGNALS)
            raise ValueError(f"needs: {[*needs]} are not all made by the two passes, as these are: {known}")
        reads_student, reads_teacher = any(s.student for s in wanted), any(s.teacher for s in wanted)
        if reads_teacher and teacher is None:
            raise ValueError(f"teacher: {[*needs]} needs the teacher's prompts, and none were given")
        mask = self.completions.mask
        values = {signal.name: torch.zeros_like(mask, dtype=torch.float32) for signal in wanted}
        if wanted:
            shown = teacher if isinstance(teacher, Prompts) else student
            with evaluating(self.model):
                for batch, counts in self._batches(shown):
                    keep = self._kept(batch)
                    student_ND = teacher_ND = None
                    if reads_student and student_states is None:
                        student_ND = self._hidden(student, batch, keep)
                    elif student_states is not None and reads_student:
                        student_ND = student_states(batch, keep)
                    if isinstance(teacher, TeacherStates):
                        teacher_ND, self.teacher_head = teacher.hidden(batch, keep), teacher.head
                    elif teacher is not None and reads_teacher:
                        teacher_ND = self._hidden(teacher, batch, keep, lent=True)
                    found = self._statistics(wanted, batch, keep, student_ND, teacher_ND)
                    for name in found if counts else ():
                        values[name][batch] = found[name]
        return TokenSignals(mask=mask, turn_id=turn_ids(mask), values=values)

    @torch.no_grad()
    def teacher_states(self, teacher: Prompts) -> TeacherStates:
        """The teacher's pass by itself, for the signals of the same completions and rows, or fewer.

        Call it before the student's forward: lending weights later writes into what its graph has saved. Of a
        teacher that is another model its states and its head are all that is left. Only states of trained tokens
        are kept.
        """
        mask = self.completions.mask
        kept = KeptStates(mask if self.row_B is None else mask & self.row_B[:, None])
        with evaluating(self.model):
            for batch, counts in self._batches(teacher):
                keep = self._kept(batch)
                hidden = self._hidden(teacher, batch, keep, lent=True)
                if counts:
                    kept.take(batch, keep, hidden)
        return TeacherStates(hidden=kept, head=self.teacher_head)

    def _batches(self, prompts: Prompts) -> Generator[tuple[Int[Tensor, " N"], bool]]:
        """The rows to score in batches, and False for a surplus one.

        Those of one prompt together where sharing it pays, else by length, so that short rows are not padded to
        long ones. The longest come first: what runs out of memory does so at once.
        """
        mask, row_B, batch_size = self.completions.mask, self.row_B, self.batch_size
        index = torch.arange(len(mask), device=mask.device) if row_B is None else row_B.nonzero()[:, 0]
        if len(index) > batch_size:
            length = torch.where(mask[index], torch.arange(mask.shape[1], device=mask.device) + 1, 0).amax(-1)
            order = length.argsort(descending=True, stable=True)
            if self.share_prompts:
                own = prompts.take(index)
                plan = shared_prompts(own.ids_BP, own.attention_BP, int(length.max()))
                if plan is not None:
                    order = torch.tensor(plan[1], device=mask.device).argsort(stable=True)
            index = index[order]
        starts = range(0, len(index), batch_size)
        yield from ((index[i : i + batch_size], True) for i in starts)
        for _ in range(self.num_batches - len(starts) if len(mask) else 0):
            yield index.new_zeros(1), False

    def _kept(self, batch: Int[Tensor, " N"]) -> Bool[Tensor, "N W"]:
        """The trained tokens; columns after the last of them predict nothing that is read."""
        mask = self.completions.mask[batch]
        return mask[:, : int((mask.any(0).nonzero().max() + 1).item()) if mask.any() else 1]

    def _statistics(
        self,
        wanted: Sequence[FoldSignal],
        batch: Int[Tensor, " N"],
        keep: Bool[Tensor, "N W"],
        student_MD: Float[Tensor, "M D"] | None,
        teacher_ME: Float[Tensor, "M E"] | None,
    ) -> dict[str, Float[Tensor, "N T"]]:
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
        pad = (0, self.completions.mask.shape[1] - keep.shape[1])
        return {name: nn.functional.pad(scattered(value, keep), pad) for name, value in values.items()}

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
        width, attention = keep.shape[1], prompts.attention_BP[batch]
        begin = int(attention.any(0).nonzero().min().item()) if attention.any() else 0
        prompt, attention = prompts.ids_BP[batch][:, begin:], attention[:, begin:]
        ids, attended = self.completions.ids[batch][:, :width], self.completions.attention[batch][:, :width]
        hidden = None
        if self.share_prompts:
            hidden = states_after_shared_prompts(
                self.model,
                partial(captured_forward, self.model),
                prompt,
                attention,
                ids,
                attended,
            )
        if hidden is None:
            both = torch.cat([prompt, ids], 1), torch.cat([attention, attended], 1)
            hidden = hidden_states(self.model, *both, num_tokens=width)
        return hidden[keep]  # a copy, so that the prompt's hidden states are freed
