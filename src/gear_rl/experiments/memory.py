"""Signals of completions that many methods want: each pass of the model is run once. Knows no engine."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.passes import Passes
from gear_rl.signals.score import Prompts, StudentStates, needs_student
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

    def __call__(self, request: ForwardRequest, passes: Passes) -> dict[str, Tensor]:
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

    def _ask(self, request: ForwardRequest, passes: Passes, rows: list[int]) -> dict[str, Tensor]:
        along = (name for name in self._names if request.teachers or not signal_of(name).teacher)
        wider = replace(request, needs=tuple(dict.fromkeys((*request.needs, *along))))
        states = self._students(request, passes, rows) if needs_student(wider.needs) else None
        values = passes.run(wider, student_states=states)
        for name in filter(_remembered, values):
            for b in rows:
                length = int(request.completions.attention[b].sum())
                self._known[self._key(name, request, b)] = values[name][b, :length].cpu()
        return {name: values[name] for name in request.needs}

    def _students(self, request: ForwardRequest, passes: Passes, rows: list[int]) -> StudentStates:
        """The student's hidden states of these rows; a teacher that is shown something else needs the same."""
        keys = [self._key("student_entropy", request, b) for b in rows]
        mask = request.completions.mask
        if all(key in self._states for key in keys):
            kept = {b: self._states[key].to(mask.device) for b, key in zip(rows, keys, strict=True)}
            return _Kept(kept)
        states = passes.student_pass(request)
        held = sum(states_MD.nbytes for states_MD in self._states.values())
        for b, key in zip(rows, keys, strict=True):
            one = torch.tensor([b], device=mask.device)
            states_MD = states(one, mask[one]).cpu()
            held += states_MD.nbytes
            if held <= MOST_BYTES:
                self._states[key] = states_MD
        return states

    def _key(self, name: str, request: ForwardRequest, b: int) -> _Key:
        done, kind = request.completions, signal_of(name)
        length = int(done.attention[b].sum())
        asked = None if done.asked is None else tuple(int_list(done.asked[b, :length]))
        emitted = tuple(int_list(done.ids[b, :length])), tuple(int_list(done.mask[b, :length].long())), asked
        teachers = tuple(_ids(shown, b) for shown in request.teachers) if kind.teacher else ()
        return name, emitted, _ids(request.student, b), teachers


@dataclass(frozen=True, slots=True)
class _Kept:
    """A ``StudentStates`` of whole rows."""

    of_row: dict[int, Float[Tensor, "M D"]]

    def __call__(self, batch: Int[Tensor, " N"], keep: Bool[Tensor, "N W"]) -> Float[Tensor, "M D"]:
        return torch.cat([self.of_row[b] for b in int_list(batch)])


def _remembered(name: str) -> bool:
    kind = signal_of(name)
    return kind.made_by == "passes" and kind.per == "token"


def _ids(prompts: Prompts, b: int) -> tuple[int, ...]:
    return tuple(int_list(prompts.ids_BP[b][prompts.attention_BP[b].bool()]))
