"""CRPO (arXiv:2605.25511): numbers worked by hand."""

import math

import pytest
import torch

from gear_rl.methods import Crpo
from gear_rl.types import TokenSignals
from methods.completions import close

# Three completions of a group and one alone; task, style and a third reward function.
FOUR = TokenSignals(
    mask=torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool(),
    group_B=torch.tensor([5, 5, 5, 0]),
    rewards_BR=torch.tensor([[1.0, 0.0, 9.0], [0.0, 30.0, 0.0], [1.0, 60.0, 0.0], [4.0, 4.0, 4.0]]),
)
BASE = torch.tensor([3.0, 3.0, 3.0, 3.0])
# Task 1, 0, 1: mean 2/3, squares 1/9 + 4/9 + 1/9, deviation sqrt(1/3): 0.5773503, -1.1547005, 0.5773503.
# Style 0, 30, 60: mean 30, deviation 30: -1, 0, 1.
# Style with the third, 9, 30, 60: mean 33, squares 576 + 9 + 729, deviation sqrt(657): -24, -3, 27 over it.
# Task with the third, 10, 0, 1: mean 11/3, squares 361 + 121 + 64 in ninths, deviation sqrt(273/9).
ROOT = math.sqrt(1 / 3)


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        (Crpo(epsilon=1e-6), (ROOT - 1) / 2, -ROOT),
        (Crpo(task_share=0.25, epsilon=1e-6), ROOT / 4 - 3 / 4, -ROOT / 2),
        (Crpo(task_share=0.0, epsilon=1e-6), -1.0, 0.0),
        (Crpo(task_share=0.0), -30 / (30 + 1e-4), 0.0),
        (
            Crpo(style=(1, 2), epsilon=1e-6),
            (ROOT - 24 / math.sqrt(657)) / 2,
            (-2 * ROOT - 3 / math.sqrt(657)) / 2,
        ),
        (Crpo(epsilon=30.0, task_share=0.0), -0.5, 0.0),
    ],
)
def test_worked_by_hand(method, first, second):
    credit = method(BASE, FOUR)
    expected = [[first, first, 0], [second, 0, second], [0, 0, 0], [0, 0, 0]]
    close(credit.advantage, torch.tensor(expected))
    assert credit.segment_id.tolist() == [[0, 0, -1], [0, -1, 0], [-1, -1, -1], [0, 0, 0]]


def test_sums_that_differ_in_their_last_bits_are_equal():
    rewards = torch.tensor([[8.1, 1.3], [1.3, 8.1], [5.3, 4.1], [7.7, 1.7]])  # 9.4 each
    signals = TokenSignals(
        mask=torch.ones(4, 1, dtype=torch.bool),
        group_B=torch.zeros(4, dtype=torch.long),
        rewards_BR=torch.cat([rewards, torch.zeros(4, 1)], 1),
    )
    advantage = Crpo(task=(0, 1), style=(2,))(torch.zeros(4), signals).advantage
    assert advantage.abs().max() < 0.01
