"""MT-GRPO (arXiv:2505.11821): numbers worked by hand from the released rule."""

import math

import pytest
import torch

from gear_rl.methods import MtGrpo
from gear_rl.types import TokenSignals
from methods.completions import close

# Three rollouts of a group, and one alone in another.
MASK = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 0, 0]]).bool()
FOUR = TokenSignals(
    mask=MASK,
    group_B=torch.tensor([2, 2, 2, 1]),
    reward_B=torch.tensor([1.0, 0.0, 0.0, 5.0]),
    # The first turns' rewards are 2, 0, 1 and 9; those of later turns are not read.
    turn_reward=torch.tensor([[2.0, 2, math.nan, 50, 0, 50], [0.0, 0, 7, 7, 0, 0], [1.0] * 6, [9.0] * 6]),
)
BASE = torch.tensor([1.0, -0.5, 4.0, 0.25])
# T = 2, 0, 1: mean 1, deviation 1.  T + R = 3, 0, 1: mean 4/3, squares 25/9 + 16/9 + 1/9 = 42/9, deviation
# sqrt(21/9) = 1.5275252; the third: (1 - 4/3) / 1.5276252 = -0.2182036.
TURN, ALONE = 1 / 1.0001, -0.2182036


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_worked_by_hand(weight):
    credit = MtGrpo(turn_weight=weight)(BASE, FOUR)
    first, second = 1.0 + weight * TURN, -0.5 - weight * TURN
    expected = [
        [first, first, 0, 1.0, 0, 1.0],
        [second, 0, -0.5, -0.5, 0, 0],
        [ALONE, ALONE, ALONE, 0, 0, 0],  # no tool answered: the mixed reward, whatever the weight
        [0.25, 0, 0.25, 0, 0, 0],  # alone: nothing to add
    ]
    close(credit.advantage, torch.tensor(expected))
    assert credit.segment_id[0].tolist() == [0, 0, -1, 1, -1, 2]
