"""The memory of signals: what was computed from the same ids is not computed again, everything else is."""

from dataclasses import replace

import pytest
import torch

from gear_rl.credit.batch import ForwardRequest
from gear_rl.credit.passes import ModelPasses
from gear_rl.lab import memory as memory_module
from gear_rl.lab.memory import SignalMemory
from gear_rl.signals.score import Completions, KeptStates, Prompts


def _request(
    needs, *, ids=((5, 6), (7, 0)), student=((1, 2), (0, 3)), teacher=((8, 9), (0, 4)), scored=(1, 1)
):
    def prompts(rows):
        ids_BP = torch.tensor(rows)
        return Prompts(ids_BP=ids_BP, attention_BP=ids_BP.sign())

    ids_BT = torch.tensor(ids)
    return ForwardRequest(
        needs=tuple(needs),
        step=0,
        completions=Completions(ids=ids_BT, attention=ids_BT.sign(), mask=ids_BT > 0),
        student=prompts(student),
        teachers=[] if teacher is None else [prompts(teacher)],
        scored_B=torch.tensor(scored).bool(),
    )


class _Passes(ModelPasses):
    """Signals and hidden states that tell from which ids they are; notes what it is asked."""

    def __init__(self):
        self.__dict__.update(asked=[], student_passes=[])

    @property
    def students(self):
        return len(self.student_passes)

    def student_pass(self, request):
        self.student_passes.append(request)
        states = KeptStates(request.completions.mask & request.scored_B[:, None])
        rows = request.scored_B.nonzero()[:, 0]
        keep = request.completions.mask[rows]
        states.take(rows, keep, self._states(request)[rows][keep])
        return states

    def _states(self, request):
        return (request.completions.ids + 10 * request.student.ids_BP.sum(-1)[:, None]).float()[..., None]

    def run(self, request, *, student_states=None, teacher_states=None):
        self.asked.append(request.needs)
        if student_states is not None:
            rows = request.scored_B.nonzero()[:, 0]
            keep = request.completions.mask[rows]
            assert torch.equal(student_states(rows, keep), self._states(request)[rows][keep])
        mask = request.completions.mask & request.scored_B[:, None]
        values = {}
        for name in request.needs:
            shown = request.student.ids_BP.sum(-1)
            if name != "student_entropy":
                shown = shown + 100 * request.teachers[0].ids_BP.sum(-1)
            values[name] = torch.where(mask, request.completions.ids + 10 * shown[:, None], 0).float()
        return values


def _both(memory, request):
    """What the memory answers and what the model would; they must never differ."""
    passes = _Passes()
    found = memory(request, passes)
    wanted = _Passes().run(request)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
    assert passes.students <= len(passes.asked)
    return passes.asked


def test_what_is_wanted_later_is_computed_along():
    memory = SignalMemory(["divergence", "student_entropy", "teacher_logprob"])
    assert _both(memory, _request(["divergence"])) == [("divergence", "student_entropy", "teacher_logprob")]
    assert _both(memory, _request(["teacher_logprob", "student_entropy"])) == []
    # Other padding, other neighbours: the same completion.
    wider = _request(["divergence"], ids=((7, 0, 0),), student=((0, 0, 3),), teacher=((4,),), scored=(1,))
    assert _both(memory, wider) == []
    # A student's signal does not depend on what the teacher was shown.
    assert _both(memory, _request(["student_entropy"], teacher=None)) == []


@pytest.mark.parametrize(
    "other",
    [
        {"ids": ((5, 9), (7, 0))},
        {"student": ((1, 5), (0, 3))},
        {"teacher": ((8, 8), (0, 4))},
    ],
)
def test_other_ids_are_computed_again(other):
    memory = SignalMemory(["divergence"])
    _both(memory, _request(["divergence"]))
    assert _both(memory, _request(["divergence"], **other)) == [("divergence",)]


def test_the_students_pass_is_run_once_whatever_its_teachers_are_shown(monkeypatch):
    def students(memory):
        passes = _Passes()
        memory(_request(["divergence"]), passes)
        # Other neighbours and other padding: row by row the same student.
        memory(
            _request(["divergence"], ids=((7, 0, 0),), student=((3,),), teacher=((9,),), scored=(1,)), passes
        )
        memory(_request(["divergence"], teacher=((5, 5), (5, 5))), passes)
        assert len(passes.asked) == 3
        return passes.students

    assert students(SignalMemory(["divergence"])) == 1
    # Two of three tokens: nothing of the second row is kept.
    monkeypatch.setattr(memory_module, "MOST_BYTES", 8)
    assert students(SignalMemory(["divergence"])) == 3
    passes = _Passes()
    SignalMemory(["teacher_logprob"])(_request(["teacher_logprob"]), passes)
    assert passes.students == 0  # nothing asks for it


def test_a_row_that_was_not_scored_is_not_known():
    memory = SignalMemory(["divergence"])
    _both(memory, _request(["divergence"], scored=(1, 0)))
    assert _both(memory, _request(["divergence"], scored=(1, 0))) == []
    assert _both(memory, _request(["divergence"], scored=(1, 1))) == [("divergence",)]


def test_without_a_teacher_only_the_students_are_computed_along():
    memory = SignalMemory(["student_entropy", "divergence"])
    assert _both(memory, _request(["student_entropy"], teacher=None)) == [("student_entropy",)]


def test_what_comes_from_elsewhere_is_asked_for_each_time():
    memory, request = SignalMemory(["student_entropy", "reference_logprob"]), _request(["student_entropy"])
    _both(memory, request)
    assert _both(memory, replace(request, needs=("student_entropy", "reference_logprob"))) == [
        ("reference_logprob",)
    ]
