"""Divergences over the vocabulary in tiles: the definition is the full log-softmax in float64."""

import math

import pytest
import torch

from gear_rl.tensor.divergences import DIVERGENCES, divergences
from gear_rl.tensor.logits import Head
from tensor.test_logits import seeded


def test_by_hand():
    """p = 0.9, 0.1 and q = 0.5, 0.5, so m = 0.7, 0.3; -log p is 0.105 or 2.303."""
    student, teacher = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    found = divergences(student, Head(weight_VD=torch.eye(2)), teacher, names=DIVERGENCES)
    expected = {
        "forward_divergence": 0.5 * math.log(5 / 9) + 0.5 * math.log(5),  # 0.511; the reverse is 0.368
        "js_divergence": (
            0.9 * math.log(9 / 7) + 0.1 * math.log(1 / 3) + 0.5 * math.log(5 / 7) + 0.5 * math.log(5 / 3)
        )
        / 2,
        "teacher_entropy": math.log(2),
        "student_varentropy": 0.9 * 0.1 * math.log(9) ** 2,  # two values log 9 apart: p (1 - p) distance^2
    }
    assert list(found) == list(DIVERGENCES)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, abs=1e-6), name


def test_a_sum_that_rounds_past_log_two_is_held_there():
    """A thousand tokens in two halves that share nothing: unclamped, some of these rows reach 0.693148."""
    halves = torch.cat([torch.eye(2)] * 500) + 0.01 * torch.randn(1000, 2, generator=seeded())
    student = torch.tensor([[200.0, 0.0]]) + torch.rand(50, 2, generator=seeded(1))
    found = divergences(student, Head(weight_VD=halves), student.flip(1), names=["js_divergence"])
    limit = torch.tensor(math.log(2))
    assert (found["js_divergence"] <= limit).all() and (found["js_divergence"] > limit - 1e-5).all()
