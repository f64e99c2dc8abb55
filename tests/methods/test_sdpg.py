"""SDPG (arXiv:2606.04036): GRPO's advantage, the schedule and the gate of its weight, its anchor."""

import pytest
import torch

from gear_rl.methods import Sdpg
from gear_rl.traits import Distillation, Scheduled
from gear_rl.types import TokenSignals

MASK = torch.tensor([[True, False, True], [True, True, False], [True, True, True], [False, False, False]])
A = torch.tensor([2.0, -1.0, 0.0, 3.0])
SIGNALS = TokenSignals(mask=MASK, reference_logprob=-torch.ones(4, 3))


@pytest.mark.parametrize(
    ("positive_only", "weight"),
    [
        # released: every trained token
        (False, [[0.5, 0, 0.5], [0.5, 0.5, 0], [0.5, 0.5, 0.5], [0, 0, 0]]),
        # paper: only where A > 0; 0 is not
        (True, [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_worked_by_hand(positive_only, weight):
    credit = Sdpg(weight=0.5, positive_only=positive_only)(A, SIGNALS)
    assert credit.distill_weight.tolist() == weight
    assert credit.advantage.tolist() == [[2, 0, 2], [-1, -1, 0], [0, 0, 0], [0, 0, 0]]
    assert credit.segment_id.tolist() == [[0, -1, 0], [0, 0, -1], [0, 0, 0], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("settings", "step", "expected"),
    [
        ({}, 0, 1.0),
        # k / 4 up to 4
        ({"warmup_steps": 4}, 1, 0.25),
        ({"warmup_steps": 4}, 4, 1.0),
        # (20 - k) / 5 from 15 on
        ({"decay_steps": 5, "total_steps": 20}, 0, 1.0),
        ({"decay_steps": 5, "total_steps": 20}, 18, 0.4),
        ({"decay_steps": 5, "total_steps": 20}, 20, 0.0),
        # both at once, where they overlap: 6/8 * (10 - 6)/8
        ({"warmup_steps": 8, "decay_steps": 8, "total_steps": 10}, 6, 0.375),
    ],
)
def test_the_schedule_by_hand(settings, step, expected):
    method = Sdpg(weight=1e-3, **settings)
    assert isinstance(method, Scheduled)
    assert method.at_step(step).weight == pytest.approx(1e-3 * expected)
    assert method.at_step(step).warmup_steps == method.at_step(step).decay_steps == 0, "no schedule is left"
    assert method.weight == 1e-3


def test_the_released_term():
    expected = Distillation(beta=1.0, max_nats=20.0, anchor="urkl", anchor_weight=1e-3, top_k=None)
    assert Sdpg().distillation == expected
    assert Sdpg().weight == 1e-3 and not Sdpg().positive_only
