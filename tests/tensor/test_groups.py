"""Groups and turns: each routine agrees with plain Python on lists."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.groups import (
    group_relative,
    has_turn,
    last_turn,
    on_turns,
    returns_to_go,
    turn_advantages,
    turn_values,
)
from gear_rl.tensor.segments import turn_ids
from tensor.tables import PROPERTY, tables, with_nan

KEYS = torch.tensor([-1, 0, 5, 10**12])


@st.composite
def entries(draw):
    """Values, two keys and who counts; some groups have one entry, some none that counts."""
    count, g = draw(st.integers(0, 12)), torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    keys = KEYS[torch.randint(4, (2, count), generator=g)]
    values = torch.randint(-6, 7, (count,), generator=g) / 2
    return values, *keys, torch.rand(count, generator=g) < 0.6


@PROPERTY
@given(entries())
def test_statistics_agree_with_the_lists_of_the_groups(entry):
    x, group, _, among = entry
    centred = group_relative(with_nan(x, among), group, among)
    scaled = group_relative(with_nan(x, among), group, among, epsilon=0.5)
    for i, counts in enumerate(among.tolist()):
        peers = [
            v
            for v, g, c in zip(x.tolist(), group.tolist(), among.tolist(), strict=True)
            if c and g == group[i]
        ]
        expected = (0.0, 0.0)
        if counts:
            m, s = statistics.mean(peers), statistics.stdev(peers) if len(peers) > 1 else 0.0
            expected = (x[i].item() - m, (x[i].item() - m) / (s + 0.5))
        found = (centred[i].item(), scaled[i].item())
        assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, 1e30, -7.7])
@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_equal_entries_differ_by_exactly_nothing(value, count):
    """In float32 three times 0.1 is not 0.3, and over a tiny epsilon the difference would look like credit."""
    x, group = torch.full((count,), value), torch.zeros(count, dtype=torch.int64)
    assert not group_relative(x, group, epsilon=1e-8).any()


def columns_of_turns(row: list[bool]) -> list[list[int]]:
    turns: list[list[int]] = []
    for column, sampled in enumerate(row):
        if sampled and (column == 0 or not row[column - 1]):
            turns.append([])
        if sampled:
            turns[-1].append(column)
    return turns


@PROPERTY
@given(tables(float, bool))
def test_a_turns_value_is_that_of_its_first_token_and_stands_on_each(table):
    x, mask = table
    turn_id = turn_ids(mask)
    value, has = turn_values(with_nan(x, mask), turn_id), has_turn(turn_id)
    assert value.shape == has.shape == mask.shape
    tokens = torch.zeros_like(x)
    for b, row in enumerate(mask.tolist()):
        turns = columns_of_turns(row)
        firsts = [x[b, columns[0]].item() for columns in turns]
        absent = len(row) - len(turns)
        assert value[b].tolist() == firsts + [0.0] * absent
        assert has[b].tolist() == [True] * len(turns) + [False] * absent
        assert last_turn(has)[b].tolist() == [k == len(turns) - 1 for k in range(len(row))]
        for first, columns in zip(firsts, turns, strict=True):
            tokens[b, columns] = first
    assert torch.equal(on_turns(value, turn_id), tokens)


def test_turns_that_meet_without_a_masked_token_and_one_that_is_interrupted():
    turn_id = torch.tensor([[0, 0, 1, -1, 1, 2]])
    x = torch.tensor([[1.0, 2.0, 3.0, 9.0, 4.0, 5.0]])
    assert turn_values(x, turn_id).tolist() == [[1.0, 3.0, 5.0, 0.0, 0.0, 0.0]]


@PROPERTY
@given(tables(float, max_tokens=19), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_returns_agree_with_the_sum_from_the_end(table, discount):
    (reward,) = table
    found = returns_to_go(reward, discount)
    for b, row in enumerate(reward.tolist()):
        total, expected = 0.0, []
        for r in reversed(row):
            total = r + discount * total
            expected.insert(0, total)
        assert found[b].tolist() == pytest.approx(expected, abs=1e-5)


DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@st.composite
def rewarded_turns(draw):
    """The rewards of two groups' completions in one to six turns each, and the discount."""
    rows, groups = draw(st.integers(2, 9)), draw(st.integers(1, 2))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    length_B = torch.randint(1, 7, (rows,), generator=g)
    has = torch.arange(6) < length_B[:, None]
    # Shares of a thousandth: nearly equal returns are common.
    step = draw(st.sampled_from([1.0, 0.001]))
    reward = torch.where(has, torch.randint(-3, 4, has.shape, generator=g) * step, 0.0)
    return reward, torch.arange(rows) % groups, has, draw(DISCOUNTS)


def advantages(reward, group_B, has, discount):
    return turn_advantages(reward, group_B, has, discount=discount, epsilon=1e-4)


@PROPERTY
@given(rewarded_turns(), st.floats(-2.0, 2.0, width=32))
def test_with_equal_returns_the_number_of_turns_changes_nothing(turns, whole):
    reward, group_B, has, discount = turns
    reward = reward + torch.where(last_turn(has), whole - reward.sum(-1, keepdim=True), 0.0)
    assert advantages(reward, group_B, has, discount).abs().max() < 0.02, "rounding over epsilon"


@PROPERTY
@given(rewarded_turns())
def test_the_first_turn_has_the_advantage_of_the_whole_return(turns):
    """As GRPO would give it, whatever the number of turns that earned it."""
    reward, group_B, has, _ = turns
    expected = group_relative(reward.sum(-1), group_B, epsilon=1e-4)
    torch.testing.assert_close(advantages(reward, group_B, has, 1.0)[:, 0], expected, atol=1e-4, rtol=1e-4)


@PROPERTY
@given(rewarded_turns())
def test_more_return_to_go_is_never_less_advantage_and_none_is_large(turns):
    """Among the turns of one number; it cannot hold of sums over turns, of which some stand alone."""
    reward, group_B, has, discount = turns
    found, returns = advantages(reward, group_B, has, discount), returns_to_go(reward, discount)
    size_B = (group_B[:, None] == group_B).sum(-1, keepdim=True)
    assert (found.abs() <= (size_B - 1).sqrt() + 1e-5).all()
    for k in range(6):
        beside = has[:, k] & has[:, k, None] & (group_B == group_B[:, None])
        more = returns[:, k] - returns[:, k, None] > 1e-5
        assert not (beside & more & (found[:, k] < found[:, k, None])).any()
