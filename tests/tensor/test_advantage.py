"""The group-relative advantage of GRPO, by hand."""

import math

import torch

from gear_rl.tensor.advantage import group_relative_advantage


def test_worked_by_hand():
    """Mean 2, sample variance (4 + 0 + 4) / 2 = 4; the second group by itself."""
    reward_B = torch.tensor([0.0, 2.0, 4.0, 1.0, 1.0, 4.0])
    found = group_relative_advantage(reward_B, group_size=3, epsilon=0.0)
    expected = torch.tensor([-1.0, 0.0, 1.0, -1 / math.sqrt(3), -1 / math.sqrt(3), 2 / math.sqrt(3)])
    torch.testing.assert_close(found, expected)
    larger = group_relative_advantage(reward_B[:3], group_size=3, epsilon=2.0)
    torch.testing.assert_close(larger, torch.tensor([-0.5, 0.0, 0.5]))
    unscaled = group_relative_advantage(reward_B, group_size=3, scale=False)
    assert unscaled.tolist() == [-2.0, 0.0, 2.0, -1.0, -1.0, 2.0]
    assert torch.equal(group_relative_advantage(reward_B.long(), group_size=3, epsilon=0.0), found)


def test_equal_rewards_and_a_group_of_one_have_no_advantage():
    assert group_relative_advantage(torch.tensor([1.0, 1.0, 3.0, 3.0]), group_size=2).tolist() == [0.0] * 4
    for dtype, reward, count in ((torch.float32, 0.3, 8), (torch.float32, 1.3, 7), (torch.float64, 0.1, 3)):
        rewards_B = torch.full((count,), reward, dtype=dtype)  # whose mean is not the reward
        assert not group_relative_advantage(rewards_B, count, epsilon=1e-6).any()
    assert group_relative_advantage(torch.tensor([1.0, 5.0]), group_size=1).tolist() == [0.0, 0.0]
