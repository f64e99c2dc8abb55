"""Passes as plain functions, for tests that score once."""

import torch

from gear_rl.signals.batch import ForwardRequest
from gear_rl.signals.passes import ModelPasses
from gear_rl.signals.score import Scorer
from gear_rl.signals.signal import signals_of
from gear_rl.signals.teacher import Teacher


def scorer(model, completions, row_B=None, **settings):
    row_B = torch.ones(len(completions.mask), dtype=torch.bool) if row_B is None else row_B
    return Scorer(model=model, completions=completions, row_B=row_B, **settings)


def score(model, completions, student, teacher=None, *, needs, student_states=None, **settings):
    return scorer(model, completions, **settings).signals(signals_of(needs), student, teacher, student_states)


def passed(model, signals, completions, student, *, teachers=(), row_B=None, num_batches=0, **options):
    """The values of signals with passes of their own; ``options`` of the passes, else what the signals read."""
    names = ModelPasses.__dataclass_fields__
    settings = {"pad_id": 0, "teacher": Teacher(), "reference": Teacher()}
    settings |= {name: value for name, value in options.items() if name in names}
    request = ForwardRequest(
        needs=signals,
        step=0,
        completions=completions,
        student=student,
        teachers=teachers,
        scored_B=torch.ones(len(completions.mask), dtype=torch.bool) if row_B is None else row_B,
        inputs={name: value for name, value in options.items() if name not in names},
    )
    return ModelPasses(model=model, largest=lambda count: max(count, num_batches), **settings).run(request)
