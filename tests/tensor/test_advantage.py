"""The group-relative advantage against ``statistics``, group by group."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.advantage import group_relative_advantage
from tensor.rows import PROPERTY


def advantage_loop(rewards, group_size, epsilon, scale):
    found = []
    for begin in range(0, len(rewards), group_size):
        group = rewards[begin : begin + group_size]
        spread = statistics.stdev(group) if group_size > 1 else 0.0
        divisor = spread + epsilon if scale else 1.0
        found += [(reward - statistics.fmean(group)) / divisor for reward in group]
    return found


@PROPERTY
@given(
    st.integers(1, 5).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.lists(st.lists(st.integers(-4, 4), min_size=size, max_size=size), min_size=1, max_size=3),
        )
    ),
    st.sampled_from([1e-4, 1e-6, 0.5]),
    st.booleans(),
)
def test_agrees_with_the_loop(groups, epsilon, scale):
    size, rows = groups
    rewards = [reward / 4 for row in rows for reward in row]
    found = group_relative_advantage(torch.tensor(rewards), size, epsilon, scale)
    expected = torch.tensor(advantage_loop(rewards, size, epsilon, scale), dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_worked_by_hand():
    """Mean 2, sample variance (4 + 0 + 4) / 2 = 4; the second group by itself."""
    reward_B = torch.tensor([0.0, 2.0, 4.0, 1.0, 1.0, 4.0])
    found = group_relative_advantage(reward_B, group_size=3, epsilon=0.0)
    expected = torch.tensor([-1.0, 0.0, 1.0, -1 / math.sqrt(3), -1 / math.sqrt(3), 2 / math.sqrt(3)])
    torch.testing.assert_close(found, expected)
    unscaled = group_relative_advantage(reward_B, group_size=3, scale=False)
    assert unscaled.tolist() == [-2.0, 0.0, 2.0, -1.0, -1.0, 2.0]


def test_equal_rewards_and_a_group_of_one_have_no_advantage():
    assert group_relative_advantage(torch.tensor([1.0, 1.0, 3.0, 3.0]), group_size=2).tolist() == [0.0] * 4
    assert group_relative_advantage(torch.tensor([1.0, 5.0]), group_size=1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("group_size", [0, -1, 2, 4])
def test_groups_that_do_not_divide_the_rows_are_refused(group_size):
    with pytest.raises(ValueError, match="group_size"):
        group_relative_advantage(torch.zeros(3), group_size)
