"""GiGPO (arXiv:2505.10978): numbers worked by hand."""

import dataclasses
import math

import pytest
import torch

from gear_rl.methods import Gigpo
from gear_rl.types import TokenSignals
from methods.completions import close

# Four rollouts; a, b and c are of one group. -1 is tool output or padding, a number is the state of a turn.
STATES = [
    [0, 0, -1, 1, -1, 2],  # a: three turns, from state 0 to 1 to 2; reward 1
    [0, -1, 1, 1, -1, -1],  # b: two turns; reward 0
    [0, -1, 0, -1, -1, -1],  # c: two turns, the second back where it began; reward 1/2
    [0, -1, -1, -1, -1, -1],  # d: of another group, in a state with the same number
]
FOUR = TokenSignals(
    mask=torch.tensor(STATES) >= 0,
    group_B=torch.tensor([4, 4, 4, 9]),
    reward_B=torch.tensor([1.0, 0.0, 0.5, 8.0]),
    anchor_id=torch.tensor(STATES),
    turn_reward=torch.tensor(
        [[1.0, 1.0, math.nan, 0.0, 0.0, 0.0], [0.0] * 6, [0.0, 0.0, 2.0, 0.0, 0.0, 0.0], [3.0] * 6]
    ),
)
BASE = torch.tensor([1.0, -1.0, 0.5, 0.0])

# discount 1/2: returns a 1/4, 1/2, 1;  b 0, 0;  c 1/4, 1/2.
# State 0: 1/4, 0, 1/4, 1/2 (mean 1/4);  state 1: 1/2, 0 (mean 1/4);  state 2: a alone.
# Sample deviations: state 0 sqrt((1/16 + 1/16) / 3) = 0.2041241;  state 1 sqrt(2/16) = 0.3535534.
ZERO, ONE = 0.25 / (0.2041241 + 1e-6), 0.25 / (0.3535534 + 1e-6)
SCALED = [[0.0, 0.0, 0.0, ONE, 0.0, 0.0], [-ZERO, 0, -ONE, -ONE, 0, 0], [0, 0, ZERO, 0, 0, 0], [0.0] * 6]
# discount 0.95: a 0.9025, 0.95, 1;  b 0, 0;  c 0.475, 0.5.  State 0: mean 1.8775 / 4 = 0.469375;  state 1: 0.475.
RELEASED = [
    [0.433125, 0.433125, 0.0, 0.475, 0.0, 0.0],
    [-0.469375, 0.0, -0.475, -0.475, 0.0, 0.0],
    [0.005625, 0.0, 0.030625, 0.0, 0.0, 0.0],
    [0.0] * 6,
]
# With rewards of turns, discount 1/2: a 1 + 1/4, 1/2, 1;  b 0, 0;  c (5/2) / 2 = 5/4, 5/2.
# State 0: 5/4, 0, 5/4, 5/2, mean 5/4;  state 1 as before.
WITH_TURNS = [
    [0.0, 0.0, 0.0, 0.25, 0.0, 0.0],
    [-1.25, 0.0, -0.25, -0.25, 0.0, 0.0],
    [0.0, 0.0, 1.25, 0.0, 0.0, 0.0],
    [0.0] * 6,
]


@pytest.mark.parametrize(
    ("method", "added"),
    [
        (Gigpo(), RELEASED),
        (Gigpo(discount=0.5, normaliser="mean_std"), SCALED),
        (Gigpo(discount=0.5, turn_rewards=True), WITH_TURNS),
    ],
)
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_worked_by_hand(method, added, weight):
    credit = dataclasses.replace(method, turn_weight=weight)(BASE, FOUR)
    expected = torch.where(FOUR.mask, BASE[:, None] + weight * torch.tensor(added), 0.0)
    close(credit.advantage, expected)
    assert credit.segment_id.tolist() == [
        [0, 0, -1, 1, -1, 2],
        [0, -1, 1, 1, -1, -1],
        [0, -1, 1, -1, -1, -1],
        [0, -1, -1, -1, -1, -1],
    ]
