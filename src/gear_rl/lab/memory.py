"""Signals of completions that many methods want: each pass of the model is run once. Knows no engine."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.passes import ModelPasses
from gear_rl.signals.score import KeptStates, Prompts, StudentStates, needs_student
from gear_rl.tensor.lists import int_list
from gear_rl.types import signal_of

MOST_BYTES = 1 << 30
"""Of the student's hidden states that are kept; the pass of rows beyond it is run again for another teacher."""

_Key = tuple[object, ...]


class SignalMemory:
    """Remembers signals by the ids that they were computed from, and the student's hidden states.

    ``names`` are those that will be wanted sooner or later: they are computed along with the first of them that
    is. For one set of weights and settings; what does not come out of the student's and the teacher's pass
    (saliency, an answer's confidence) is computed each time.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name for name in dict.fromkeys(names) if _remembered(name)]
        self._known: dict[_Key, Tensor] = {}
        self._states: dict[_Key, Float[Tensor, "M D"]] = {}

    def __call__(self, request: ForwardRequest, passes: ModelPasses) -> dict[str, Tensor]:
        """The signals of a request, by ``passes`` where they are not known; 0 in rows that are not scored."""
        mine = [name for name in request.needs if _remembered(name)]
        rows = int_list(torch.nonzero(request.scored_B)[:, 0])
        keys = {name: [self._key(name, request, b) for b in rows] for name in mine}
        if any(key not in self._known for those in keys.values() for key in those):
            return self._ask(request, passes, rows)
        others = tuple(name for name in request.needs if name not in mine)
        values = passes.run(replace(request, needs=others)) if others else {}
        mask = request.completions.mask
        for name in mine:
            values[name] = torch.zeros(mask.shape, device=mask.device)
            for b, key in zip(rows, keys[name], strict=True):
                kept = self._known[key].to(mask.device)
                values[name][b, : len(kept)] = kept
        return {name: values[name] for name in request.needs}

    def _ask(self, request: ForwardRequest, passes: ModelPasses, rows: list[int]) -> dict[str, Tensor]:
        along = (name for name in self._names if request.teachers or not signal_of(name).teacher)
        wider = replace(request, needs=tuple(dict.fromkeys((*request.needs, *along))))
        states = self._students(request, passes, rows) if needs_student(wider.needs) else None
        values = passes.run(wider, student_states=states)
        for name in filter(_remembered, values):
            for b in rows:
                length = int(request.completions.attention[b].sum())
                self._known[self._key(name, request, b)] = values[name][b, :length].cpu()
        return {name: values[name] for name in request.needs}

    def _students(self, request: ForwardRequest, passes: ModelPasses, rows: list[int]) -> StudentStates:
        """The student's hidden states of these rows; a teacher that is shown something else needs the same."""
        keys = [
            self._key("student_entropy", request, b) for b in rows
        ]  # as a signal that only the student makes
        mask = request.completions.mask
        each = [(torch.tensor([b], device=mask.device), key) for b, key in zip(rows, keys, strict=True)]
        if all(key in self._states for key in keys):
            kept = KeptStates(mask & request.scored_B[:, None])
            for row, key in each:
                kept.take(row, mask[row], self._states[key].to(mask.device))
            return kept
        states = passes.student_pass(request)
        held = sum(kept_MD.nbytes for kept_MD in self._states.values())
        for row, key in each:
            own_MD = states(row, mask[row]).cpu()
            held += own_MD.nbytes if key not in self._states else 0
            if held <= MOST_BYTES:
                self._states[key] = own_MD
        return states

    def _key(self, name: str, request: ForwardRequest, b: int) -> _Key:
        done, kind = request.completions, signal_of(name)
        length = int(done.attention[b].sum())
        asked = None if done.asked is None else tuple(int_list(done.asked[b, :length]))
        emitted = tuple(int_list(done.ids[b, :length])), tuple(int_list(done.mask[b, :length].long())), asked
        teachers = tuple(_ids(shown, b) for shown in request.teachers) if kind.teacher else ()
        return name, emitted, _ids(request.student, b), teachers


def _remembered(name: str) -> bool:
    kind = signal_of(name)
    return kind.made_by == "passes" and kind.per == "token"


def _ids(prompts: Prompts, b: int) -> tuple[int, ...]:
    return tuple(int_list(prompts.ids_BP[b][prompts.attention_BP[b].bool()]))
