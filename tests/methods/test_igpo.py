"""IGPO (arXiv:2510.14967): numbers worked by hand for both releases and for ours."""

import math

import pytest
import torch

from gear_rl.errors import warn_once
from gear_rl.methods import Igpo
from gear_rl.types import TokenSignals
from methods.completions import close

NAN = math.nan
MASK = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
FOUR = TokenSignals(
    mask=MASK,
    group_B=torch.tensor([1, 1, 1, 0]),
    reward_B=torch.tensor([1.0, 0.0, 0.5, 7.0]),
    answer_confidence=torch.tensor(
        [
            [0.25, 0.25, NAN, 0.75, NAN, 0.5],  # gains 1/2 and -1/4, then the reward 1: returns 5/4, 3/4, 1
            [0.25, NAN, 0.25, NAN, NAN, NAN],  # gain 0, reward 0
            [0.25, 0.25, 0.25, NAN, NAN, NAN],  # one turn, which is the last: reward 1/2
            [0.5, NAN, NAN, NAN, NAN, NAN],
        ]
    ),
)
BASE = torch.tensor([9.0, 9.0, 9.0, 9.0])


def laid_out(a, b, c):
    """The values of the turns of the three siblings on their tokens; the fourth is alone and has 0."""
    rows = [[a[0], a[0], 0, a[1], 0, a[2]], [b[0], 0, b[1], 0, 0, 0], [c[0]] * 3 + [0] * 3, [0] * 6]
    return torch.tensor(rows, dtype=torch.float32)


THIRD = 1 / 3
# All six returns 5/4, 3/4, 1, 0, 0, 1/2 have mean 7/12; the rewards 1/2, -1/4, 1, 0, 0, 1/2 have mean 7/24.


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # first turns 5/4, 0, 1/2 (mean 7/12), second turns 3/4, 0 (mean 3/8), the third turn alone
        (Igpo(), laid_out([2 * THIRD, 0.375, 0.0], [-7 / 12, -0.375], [-1 / 12])),
        (Igpo(baseline="group"), laid_out([2 * THIRD, 1 / 6, 5 / 12], [-7 / 12, -7 / 12], [-1 / 12])),
        # the last 1, 0, 1/2 (mean 1/2); the others' returns 5/4, 3/4, 0 (mean 2/3)
        (Igpo(baseline="kind"), laid_out([7 / 12, 1 / 12, 0.5], [-2 * THIRD, -0.5], [0.0])),
        # rewards less 7/24, then summed: a 17/24, 17/24 - 13/24, 17/24 - 13/24 + 5/24
        (
            Igpo(compare="igpo", baseline="group"),
            laid_out([9 / 24, 4 / 24, 17 / 24], [-14 / 24, -7 / 24], [5 / 24]),
        ),
        # a quarter of it beside three quarters of the advantage
        (Igpo(strength=0.25), laid_out([1 / 6, 3 / 32, 0.0], [-7 / 48, -3 / 32], [-1 / 48]) + 6.75 * MASK),
        # rewards by turn: first 1/2, 0, 1/2 (mean 1/3), second -1/4, 0 (mean -1/8), third alone
        (Igpo(compare="igpo"), laid_out([1 / 24, -0.125, 0.0], [-5 / 24, 0.125], [1 / 6])),
    ],
)
def test_worked_by_hand(method, expected):
    credit = method(BASE, FOUR)
    close(credit.advantage, expected)
    assert credit.segment_id.tolist()[:2] == [[0, 0, -1, 1, -1, 2], [0, -1, 1, -1, -1, -1]]


def test_the_first_release_compares_what_stands_at_the_same_index():
    """Columns of a: 5/4, 5/4, 3/4, 3/4, 1, 1; of b: 0; of c: 1/2 three times, then nothing. Their means: 7/12,
    7/12, 5/12, 1/4, 1/3, 1/3. The fourth is alone."""
    expected = [
        [2 / 3, 2 / 3, 0, 1 / 2, 0, 2 / 3],
        [-7 / 12, 0, -5 / 12, 0, 0, 0],
        [-1 / 12, -1 / 12, 1 / 12, 0, 0, 0],
        [0] * 6,
    ]
    close(Igpo(baseline="token")(BASE, FOUR).advantage, torch.tensor(expected))
    scaled = Igpo(baseline="token", scale=True)(BASE, FOUR).advantage[:3, 0]
    close(scaled, torch.tensor([8.0, -7.0, -1.0]) / math.sqrt(57))


def test_equal_returns_are_equal_in_any_number_of_turns(caplog):
    """One turn that ends right, and five: the rule of the paper gives them 2/3 and -2/3."""
    mask = torch.tensor([[True] + [False] * 8, [True, False] * 4 + [True]])
    signals = TokenSignals(
        mask=mask,
        group_B=torch.tensor([0, 0]),
        reward_B=torch.ones(2),
        answer_confidence=torch.full(mask.shape, 0.5),
    )
    assert not Igpo()(BASE[:2], signals).advantage.any()
    warn_once.cache_clear()
    by_the_paper = Igpo(compare="igpo", baseline="group")(BASE[:2], signals).advantage
    close(by_the_paper[:, 0], torch.tensor([2 / 3, -2 / 3]))
    assert "of two equal returns the one in more turns gets less" in caplog.text
