"""SERL: RLSD's numbers on answered turns, GRPO's elsewhere, by hand from arXiv:2605.19447."""

import math

import pytest
import torch

from gear_rl.methods import Rlsd, Serl
from gear_rl.types import TokenSignals
from methods.completions import completion

LOG = math.log
THREE_TURNS = TokenSignals(
    mask=torch.tensor([[True, True, False, True, True, True, False, True, True, False]]),
    # teacher over student: 1.1, 0.9 | 2, 1/4, 1.1 | 2, 0.9
    student_logprob=torch.tensor(
        [[LOG(0.5), LOG(0.5), 0, LOG(0.4), LOG(0.8), LOG(0.5), 0, LOG(0.4), LOG(0.5), 0]]
    ),
    teacher_logprob=torch.tensor(
        [[LOG(0.55), LOG(0.45), 9, LOG(0.8), LOG(0.2), LOG(0.55), 9, LOG(0.8), LOG(0.45), 9]]
    ),
)


@pytest.mark.parametrize(
    ("method", "advantage", "expected"),
    [
        # RLSD: 2 * (1/2 + 1/2 * w) with w = 1.1, 0.9 | 1.2 (of 2), 0.8 (of 1/4), 1.1; the last turn had no answer
        (Serl(), 2.0, [2.1, 1.9, 0, 2.2, 1.8, 2.1, 0, 2, 2, 0]),
        # the sign turns the ratio over: 10/11, 10/9 | 0.8 (of 1/2), 1.2 (of 4), 10/11
        (Serl(), -2.0, [-21 / 11, -19 / 9, 0, -1.8, -2.2, -21 / 11, 0, -2, -2, 0]),
        (Serl(answered_only=False), 2.0, [2.1, 1.9, 0, 2.2, 1.8, 2.1, 0, 2.2, 1.9, 0]),
        (Serl(action_tokens=2), 2.0, [2.1, 1.9, 0, 2, 1.8, 2.1, 0, 2, 2, 0]),
        (Serl(of=Rlsd(strength=1.0)), 2.0, [2.2, 1.8, 0, 2.4, 1.6, 2.2, 0, 2, 2, 0]),
    ],
)
def test_worked_by_hand(method, advantage, expected):
    credit = method(torch.tensor([advantage]), THREE_TURNS)
    torch.testing.assert_close(credit.advantage, torch.tensor([expected]).float(), atol=1e-6, rtol=0)
    assert credit.segment_id.tolist() == [[0, 1, -1, 2, 3, 4, -1, 5, 6, -1]]


def test_turns_that_are_given_are_taken():
    """Without a masked token between, only ``turn_id`` shows that token 2 begins another turn."""
    nats = {"student": [-1.0] * 4, "teacher": [0.0] * 4}
    one, two = completion(**nats), completion(**nats, turn_id=[0, 0, 1, 1])
    assert Serl()(torch.tensor([1.0]), one).advantage.tolist() == [[1, 1, 1, 1]]
    assert Serl()(torch.tensor([1.0]), two).advantage[0].tolist() == pytest.approx([1.1, 1.1, 1, 1])
