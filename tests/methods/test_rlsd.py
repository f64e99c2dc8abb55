"""RLSD: numbers worked by hand from the formula of arXiv:2604.03128, and the schedule of its strength."""

import math

import pytest
import torch

from gear_rl.methods import Rlsd
from methods.completions import completion


def from_probabilities(student, teacher):
    """One completion, from the two probabilities of each sampled token."""
    return completion(student=[math.log(p) for p in student], teacher=[math.log(p) for p in teacher])


FOUR = from_probabilities([0.5, 0.5, 0.4, 0.8], [0.55, 0.45, 0.8, 0.2])
"""Teacher over student: 1.1 and 0.9 lie inside the clip, 2 and 1/4 outside."""


@pytest.mark.parametrize(
    ("method", "advantage", "expected"),
    [
        # 2 * (1/2 + 1/2 * w) with w = 1.1, 0.9, 1.2, 0.8
        (Rlsd(), 2.0, [2.1, 1.9, 2.2, 1.8]),
        # The sign turns the ratio over: w = 10/11, 10/9, 0.8 (from 1/2), 1.2 (from 4)
        (Rlsd(), -2.0, [-21 / 11, -19 / 9, -1.8, -2.2]),
        (Rlsd(strength=1.0), 2.0, [2.2, 1.8, 2.4, 1.6]),
        (Rlsd(negative_only=True), -2.0, [-21 / 11, -19 / 9, -1.8, -2.2]),
    ],
)
def test_worked_by_hand(method, advantage, expected):
    credit = method(torch.tensor([advantage]), FOUR)
    torch.testing.assert_close(credit.advantage, torch.tensor([expected]), atol=1e-6, rtol=0)
    assert credit.segment_id.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("nats", [1e4, -1e4, 3e38, math.inf, -math.inf])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_a_log_ratio_beyond_every_exponent_stays_inside_the_clip(nats, sign, strength):
    signals = completion(student=[0.0, -1.0], teacher=[nats, -1.0])
    credit = Rlsd(strength=strength)(torch.tensor([sign]), signals)
    weight = 1 + strength * 0.2 * math.copysign(1.0, nats * sign)
    torch.testing.assert_close(credit.advantage, torch.tensor([[sign * weight, sign]]))


def test_the_warm_up_rises_from_nothing_and_the_decay_waits_for_it():
    rising = Rlsd(strength=0.8, warmup_steps=4, decay_steps=8)
    found = [rising.at_step(step).strength for step in (0, 1, 3, 4, 6, 12)]
    assert found == pytest.approx([0.0, 0.2, 0.6, 0.8, 0.6, 0.0])
    assert Rlsd(decay_steps=None).at_step(10_000).strength == 0.5
    assert Rlsd(warmup_steps=2, decay_steps=None).at_step(1).strength == 0.25
