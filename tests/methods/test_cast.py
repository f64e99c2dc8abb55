"""CAST (arXiv:2606.00172): ratio, groups of equal rewards and flips, by hand."""

import math

import pytest
import torch

from gear_rl.methods import Cast
from gear_rl.types import TokenSignals

MIXED, WON, LOST = [0, 0], [1, 1], [2, 2]


def credited(advantage, log_ratios, groups, rewards, **settings):
    ratio = torch.tensor(log_ratios)
    signals = TokenSignals(
        mask=torch.ones_like(ratio, dtype=torch.bool),
        student_logprob=torch.full_like(ratio, -2.0),
        teacher_logprob=ratio - 2.0,
        group_B=torch.tensor(groups),
        reward_B=torch.tensor(rewards),
        success_B=(torch.tensor(rewards) >= 1.0).float(),
    )
    return Cast(**settings)(torch.tensor(advantage), signals).advantage.tolist()


def test_the_ratio_scales_within_the_range_of_the_sign():
    log_ratios = [[0.02, 0.7, -0.1, -0.9], [0.02, 0.7, -0.1, -0.9]]
    good, bad = credited([0.5, -0.5], log_ratios, MIXED, [1.0, 0.0])
    assert good == pytest.approx([0.5 * math.exp(0.02), 0.5 * 1.05, 0.5 * math.exp(-0.1), 0.5 * 0.8])
    assert bad == pytest.approx([-0.5 * math.exp(-0.02), -0.5 * 0.95, -0.5 * math.exp(0.1), -0.5 * 1.2])


def test_groups_of_equal_rewards_are_credited_by_their_success():
    rewards, log_ratios = [1.0, 1.0, 0.2, 0.2], [[0.0], [0.03], [0.0], [-0.1]]
    expected = [[1.0], [math.exp(0.03)], [-1.0], [-math.exp(0.1)]]
    credit = credited([0.0] * 4, log_ratios, [*WON, *LOST], rewards)
    assert [a for row in credit for a in row] == pytest.approx([a for row in expected for a in row])
    assert credited([0.0] * 4, log_ratios, [*WON, *LOST], rewards, equal_groups=False) == [[0.0]] * 4
    # TRL's advantage of eight rewards of 0.1 is not quite 0.
    assert credited([-7.4e-5] * 2, [[0.0]] * 2, LOST, [0.1, 0.1]) == [[-1.0], [-1.0]]
    # The reward of one of three is their mean: its group is not one of equal rewards.
    assert credited([0.7, 0.0, -0.7], [[0.0]] * 3, [4, 4, 4], [0.6, 0.4, 0.2])[1] == [0.0]


def test_a_sign_flips_where_the_teacher_disagrees():
    log_ratios = [[-1.1, 1.1], [-1.1, 1.1]]
    good, bad = credited([0.5, -0.5], log_ratios, MIXED, [1.0, 0.0])
    assert good == pytest.approx([-0.1, 0.525]) and bad == pytest.approx([-0.6, 0.1])
    assert credited([0.5, -0.5], log_ratios, MIXED, [1.0, 0.0], flip_nats=None)[0][0] == pytest.approx(0.4)
    assert credited([3.0, -3.0], log_ratios, MIXED, [1.0, 0.0])[0] == pytest.approx([-0.6, 1.2])
