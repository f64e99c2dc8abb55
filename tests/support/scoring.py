"""Passes as plain functions, for tests that score once."""

import torch

from gear_rl.engine import ForwardRequest
from gear_rl.model.teacher import Teacher
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.table import signals_of
from gear_rl.types import TokenSignals

GIVEN = {"pad_id": 0, "teacher": Teacher(), "reference": Teacher(), "share_prompts": False}


def request_of(needs, completions, student, teachers=(), row_B=None, inputs=None):
    return ForwardRequest(
        needs=signals_of(needs),
        step=0,
        completions=completions,
        student=student,
        teachers=teachers,
        scored_B=torch.ones(len(completions.mask), dtype=torch.bool) if row_B is None else row_B,
        inputs=inputs or {},
    )


def passed(
    model, needs, completions, student, *, teachers=(), row_B=None, num_batches=0, states=None, **options
):
    """The values of signals; ``options`` of the passes, else what the signals read besides."""
    names = ModelPasses.__dataclass_fields__
    settings = GIVEN | {name: value for name, value in options.items() if name in names}
    inputs = {name: value for name, value in options.items() if name not in names}
    request = request_of(needs, completions, student, teachers, row_B, inputs)
    passes = ModelPasses(model=model, largest=lambda count: max(count, num_batches), **settings)
    return passes.run(request, **(states or {}))


def score(model, completions, student, shown=None, *, needs, **options):
    """The signals of the shared passes; ``shown`` are the teacher's prompts."""
    states = {"student_states": options.pop("student_states", None)}
    teachers = [] if shown is None else [shown]
    values = passed(model, needs, completions, student, teachers=teachers, states=states, **options)
    return TokenSignals(mask=completions.mask, values=values)
