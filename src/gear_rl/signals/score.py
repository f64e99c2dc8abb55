"""Run the forward passes that a method needs, and nothing else.

Hidden states are taken from the model's own ``forward`` by a hook on its backbone, so that whatever wraps the
model (PEFT, DDP, FSDP 2, a patched forward) does its work; the head is applied in tiles afterwards. Knows no
method, only the names of signals; knows no trainer.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.signals.forwards import captured_forward, evaluating, head_is_trained, head_of, hidden_states
from gear_rl.signals.prefix import shared_prompts, states_after_shared_prompts
from gear_rl.signals.privileged import TeacherPrompt
from gear_rl.tensor.divergences import DIVERGENCES, divergences
from gear_rl.tensor.logits import Head, scattered, token_statistics
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import SIGNALS, TokenSignals, signals_where

COMPUTED = signals_where(lambda signal: signal.made_by == "passes")
"""Every signal of the two passes."""

StudentStates = Callable[[Int[Tensor, " N"], Bool[Tensor, "N T"]], Float[Tensor, "M D"]]
"""Given rows and which of their tokens: the student's hidden states that predict these tokens, row by row, out of
a forward that somebody else ran at the same weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A padded batch of prompts, padded on the left so that the completion follows at once.

    >>> left_padded([TeacherPrompt((5,)), TeacherPrompt((6, 7))], pad_id=0).take(torch.tensor([0]))
    Prompts(ids_BP=tensor([[0, 5]]), attention_BP=tensor([[0, 1]]))
    """

    ids_BP: Int[Tensor, "B P"]
    attention_BP: Int[Tensor, "B P"]
    """1 on prompt tokens, 0 on padding."""

    def take(self, rows: Int[Tensor, " N"]) -> "Prompts":
        """The same of some rows."""
        return Prompts(ids_BP=self.ids_BP[rows], attention_BP=self.attention_BP[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """A padded batch of completions, padded on the right.

    >>> ids = torch.tensor([[7, 8], [9, 0]])
    >>> Completions(ids=ids, attention=ids.sign(), mask=ids > 0).take(torch.tensor([1])).mask
    tensor([[ True, False]])
    """

    ids: Int[Tensor, "B T"]
    attention: Int[Tensor, "B T"]
    """1 on tokens, tool output included; 0 on padding."""
    mask: Bool[Tensor, "B T"]
    """True on tokens that are trained."""
    asked: Int[Tensor, "B T"] | None = None
    """Of which token in each place the log-prob is meant, after the tokens that are really before it; None for
    the one that is there."""

    def take(self, rows: Int[Tensor, " N"]) -> "Completions":
        """The same of some rows."""
        asked = None if self.asked is None else self.asked[rows]
        return Completions(
            ids=self.ids[rows], attention=self.attention[rows], mask=self.mask[rows], asked=asked
        )


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


def left_padded(prompts: Sequence[TeacherPrompt], pad_id: int, device: torch.device | str = "cpu") -> Prompts:
    """The teacher's prompts as one batch.

    >>> left_padded([TeacherPrompt((5,)), TeacherPrompt((6, 7))], pad_id=0).ids_BP
    tensor([[0, 5],
            [6, 7]])
    """
    width = max((len(prompt.ids) for prompt in prompts), default=0)
    ids = [[pad_id] * (width - len(p.ids)) + list(p.ids) for p in prompts]
    attention = [[0] * (width - len(p.ids)) + [1] * len(p.ids) for p in prompts]
    shape = (len(prompts), width)
    return Prompts(
        ids_BP=torch.tensor(ids, dtype=torch.long, device=device).view(shape),
        attention_BP=torch.tensor(attention, dtype=torch.long, device=device).view(shape),
    )


def needs_teacher(needs: Sequence[str]) -> bool:
    """Whether any of the signals costs a teacher pass.

    >>> needs_teacher(["student_entropy"]), needs_teacher(["divergence"])
    (False, True)
    """
    return any(name in SIGNALS and SIGNALS[name].teacher for name in needs)


def needs_student(needs: Sequence[str]) -> bool:
    """Whether any of the signals costs a student pass: a divergence does, what the teacher has alone does not.

    >>> needs_student(["divergence"]), needs_student(["teacher_logprob"]), needs_student([])
    (True, False, False)
    """
    return any(name in SIGNALS and SIGNALS[name].student for name in needs)


@torch.no_grad()
def score(
    model: nn.Module,
    completions: Completions,
    student: Prompts,
    teacher: Prompts | TeacherStates | None = None,
    *,
    needs: Sequence[str],
    temperature: float = 1.0,
    teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None = None,
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    student_states: StudentStates | None = None,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    num_batches: int = 0,
    share_prompts: bool = False,
) -> TokenSignals:
    """The signals of every completion, at the model's present weights, in float32.

    Rows where ``row_B`` is False are not computed and hold 0. ``teacher_weights`` lends the model other weights
    for the teacher's pass; None means the student's own. ``head_context`` wraps every direct use of the head's
    weights (sharded ones are gathered there). With ``student_states`` no student pass is run: they are read
    instead. ``share_prompts`` runs a prompt once for all rows that have it, where that pays; not for a sharded
    model, whose processes must run equally many forwards. There ``num_batches`` is the least number of batches,
    and surplus ones are computed and dropped. Otherwise rows are batched by length, so that short ones are not
    padded to long ones. Dropout is off. A non-finite value is left in place; the caller decides what to do with
    it. Raises ``ValueError`` for a signal this function does not compute, or for a teacher signal without
    prompts.
    """
    unknown = [name for name in needs if name not in COMPUTED and name != "group_B"]
    if unknown:
        raise ValueError(
            f"needs: {unknown[0]!r} is not computed from forward passes; choose from {', '.join(COMPUTED)}"
        )
    if needs_teacher(needs) and teacher is None:
        raise ValueError(f"teacher: {', '.join(needs)} needs the teacher's prompts, and none were given")
    wanted = [name for name in COMPUTED if name in needs]
    signals = {name: torch.zeros(completions.mask.shape, device=completions.mask.device) for name in wanted}
    if wanted:
        shown = teacher if isinstance(teacher, Prompts) else student
        batches = _batches(completions, row_B, batch_size, shown if share_prompts else None)
        spare = [completions.ids.new_zeros(1)] * (num_batches - len(batches)) if len(completions.mask) else []
        scorer = _Scorer(model, completions, temperature, teacher_weights, head_context, share_prompts)
        with evaluating(model):
            for number, batch in enumerate(batches + spare):
                keep = scorer.kept(batch)
                student_ND = teacher_ND = None
                if needs_student(wanted):
                    own = student_states is None
                    student_ND = scorer.student(student, batch, keep) if own else student_states(batch, keep)
                if isinstance(teacher, TeacherStates):
                    teacher_ND, scorer.teacher_head = teacher.hidden(batch, keep), teacher.head
                elif teacher is not None and needs_teacher(wanted):
                    teacher_ND = scorer.teacher(teacher, batch, keep)
                values = scorer.statistics(wanted, batch, keep, student_ND, teacher_ND)
                if number < len(batches):
                    for name, value in values.items():
                        signals[name][batch] = value
    return TokenSignals(mask=completions.mask, turn_id=turn_ids(completions.mask), **signals)


@torch.no_grad()
def teacher_states(
    model: nn.Module,
    completions: Completions,
    teacher: Prompts,
    *,
    temperature: float = 1.0,
    teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None = None,
    head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    row_B: Bool[Tensor, " B"] | None = None,
    batch_size: int = 8,
    num_batches: int = 0,
    share_prompts: bool = False,
) -> TeacherStates:
    """The teacher's pass of ``score`` by itself, for a ``score`` of the same completions and rows, or fewer.

    For who has to run it before the student's forward: other weights can only be lent before a graph has saved
    the student's. And for a teacher that is another model: its states and its head are all that is left of it.
    Only the hidden states of trained tokens are kept.
    """
    scorer = _Scorer(model, completions, temperature, teacher_weights, head_context, share_prompts)
    rows_B = torch.ones_like(completions.mask[:, 0]) if row_B is None else row_B
    kept = KeptStates(completions.mask & rows_B[:, None])
    batches = _batches(completions, row_B, batch_size, teacher if share_prompts else None)
    spare = [completions.ids.new_zeros(1)] * (num_batches - len(batches)) if len(completions.mask) else []
    with evaluating(model):
        for number, batch in enumerate(batches + spare):
            keep = scorer.kept(batch)
            hidden = scorer.teacher(teacher, batch, keep)
            if number < len(batches):
                kept.take(batch, keep, hidden)
    return TeacherStates(hidden=kept, head=scorer.teacher_head)


def _batches(
    completions: Completions, row_B: Bool[Tensor, " B"] | None, batch_size: int, shared: Prompts | None = None
) -> list[Int[Tensor, " N"]]:
    """The rows to score in batches: those of one prompt together where sharing it pays, else by length.

    The longest come first: what runs out of memory does so at once.
    """
    mask = completions.mask
    index = torch.arange(len(mask), device=mask.device) if row_B is None else row_B.nonzero()[:, 0]
    if len(index) > batch_size:
        length = torch.where(mask[index], torch.arange(mask.shape[1], device=mask.device) + 1, 0).amax(-1)
        order = length.argsort(descending=True, stable=True)
        if shared is not None:
            plan = shared_prompts(shared.ids_BP[index], shared.attention_BP[index], int(length.max()))
            if plan is not None:
                order = torch.tensor(plan[1], device=mask.device).argsort(stable=True)
        index = index[order]
    return [index[i : i + batch_size] for i in range(0, len(index), batch_size)]


class _Scorer:
    """The passes of one batch of rows, and what the head makes of their hidden states."""

    def __init__(
        self,
        model: nn.Module,
        completions: Completions,
        temperature: float,
        teacher_weights: Callable[[nn.Module], AbstractContextManager[None]] | None,
        head_context: Callable[[nn.Module], AbstractContextManager[Any]] | None,
        share_prompts: bool,
    ) -> None:
        self.model, self.completions, self.temperature = model, completions, temperature
        self.teacher_weights = teacher_weights
        self.head_context = head_context or nullcontext
        self.share_prompts = share_prompts
        self.teacher_head: Head | None = None

    def kept(self, batch: Int[Tensor, " N"]) -> Bool[Tensor, "N W"]:
        """The trained tokens; columns after the last of them predict nothing that is read."""
        mask = self.completions.mask[batch]
        return mask[:, : int((mask.any(0).nonzero().max() + 1).item()) if mask.any() else 1]

    def student(self, prompts: Prompts, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]) -> Tensor:
        return self._hidden(prompts, batch, keep)

    def teacher(self, prompts: Prompts, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]) -> Tensor:
        with nullcontext() if self.teacher_weights is None else self.teacher_weights(self.model):
            hidden = self._hidden(prompts, batch, keep)
            if self.teacher_weights is not None and self.teacher_head is None and head_is_trained(self.model):
                # A copy: once the weights are handed back, the parameter is the student's again.
                with self.head_context(self.model):
                    self.teacher_head = head_of(self.model, self.temperature).clone()
        return hidden

    def statistics(
        self,
        wanted: Sequence[str],
        batch: Int[Tensor, " N"],
        keep: Bool[Tensor, "N W"],
        student: Float[Tensor, "M D"] | None,
        teacher: Float[Tensor, "M E"] | None,
    ) -> dict[str, Float[Tensor, "N T"]]:
        asked = self.completions.ids if self.completions.asked is None else self.completions.asked
        token = asked[batch][:, : keep.shape[1]][keep]
        with self.head_context(self.model):
            head = head_of(self.model, self.temperature)
            further = [name for name in wanted if name in DIVERGENCES]
            plain = [name for name in wanted if name not in further]
            values: dict[str, Tensor] = {}
            if plain and student is None:
                # Only the teacher's log-prob is needed: the teacher takes the student's place.
                assert teacher is not None
                alone = token_statistics(teacher, token, self.teacher_head or head)
                values = {"teacher_logprob": alone.student_logprob}
            elif plain and student is not None:
                other = teacher if needs_teacher(plain) else None
                both = token_statistics(student, token, head, other, self.teacher_head)
                values = {name: getattr(both, name) for name in plain}
            if further:
                values |= divergences(student, head, teacher, self.teacher_head, names=further)
        pad = (0, self.completions.mask.shape[1] - keep.shape[1])
        return {name: nn.functional.pad(scattered(value, keep), pad) for name, value in values.items()}

    def _hidden(
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
