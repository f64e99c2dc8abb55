"""CRPO (arXiv:2605.25511): numbers worked by hand, and the two normalisations as a loop."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.methods import Crpo
from gear_rl.types import TokenSignals
from methods.completions import PROPERTY
from methods.grouped import close, groups, relative

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
        (Crpo(), (ROOT - 1) / 2, -ROOT),
        (Crpo(task_share=0.25), ROOT / 4 - 3 / 4, -ROOT / 2),
        (Crpo(task_share=1.0), ROOT, -2 * ROOT),
        (Crpo(task_share=0.0), -1.0, 0.0),
        (Crpo(style=(1, 2)), (ROOT - 24 / math.sqrt(657)) / 2, (-2 * ROOT - 3 / math.sqrt(657)) / 2),
        (Crpo(task=(2, 0)), (19 / math.sqrt(273) - 1) / 2, -11 / math.sqrt(273) / 2),
        (Crpo(epsilon=30.0, task_share=0.0), -0.5, 0.0),
    ],
)
def test_worked_by_hand(method, first, second):
    credit = method(BASE, FOUR)
    expected = [[first, first, 0], [second, 0, second], [0, 0, 0], [0, 0, 0]]
    close(credit.advantage, torch.tensor(expected))
    assert credit.segment_id.tolist() == [[0, 0, -1], [0, -1, 0], [-1, -1, -1], [0, 0, 0]]


@PROPERTY
@given(
    groups(),
    st.builds(
        Crpo,
        task=st.sampled_from([(0,), (2, 0)]),
        style=st.just((1,)),
        task_share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        epsilon=st.sampled_from([1e-2, 1.0]),
    ),
)
def test_agrees_with_the_loop(drawn, method):
    advantage_B, signals = drawn
    rewards, group = signals.rewards_BR.tolist(), signals.group_B.tolist()
    expected = torch.zeros(signals.mask.shape)
    for b in range(len(group)):
        siblings = [j for j in range(len(group)) if group[j] == group[b]]
        value = 0.0
        for places, share in ((method.task, method.task_share), (method.style, 1 - method.task_share)):
            sums = {j: sum(rewards[j][place] for place in places) for j in siblings}
            value += share * relative(sums[b], list(sums.values()), method.epsilon)
        expected[b] = torch.where(signals.mask[b], value, 0.0)
    close(method(advantage_B, signals).advantage, expected)
