"""Random places: a function of the seed and of the completion alone, and as even as chance."""

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from gear_rl.tensor.permute import moved, permuted, random_order, tokens_first
from tensor.rows import PROPERTY, tables, with_nan

seeds = st.integers(-3, 2**40)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shuffle(x, mask, seed):
    return permuted(x, random_order(x, mask, seed), mask)


def move(x, chosen, mask, seed):
    return moved(x, chosen, random_order(x, mask, seed), mask)


def every(x):
    return torch.ones_like(x, dtype=torch.bool)


def assert_even(counts, num_draws):
    """Every outcome as often as the others, within five standard deviations of a fair draw."""
    share = 1 / len(counts)
    slack = 5 * math.sqrt(num_draws * share * (1 - share))
    assert sum(counts) == num_draws
    assert all(abs(count - num_draws * share) < slack for count in counts), counts


# random_order


@PROPERTY
@given(tables(float, bool), seeds)
def test_an_order_names_every_column_once_and_true_tokens_first(table, seed):
    x, mask = table
    for order, row in zip(random_order(with_nan(x, mask), mask, seed).tolist(), mask.tolist(), strict=True):
        num_true = sum(row)
        assert sorted(order[:num_true]) == [t for t, counts in enumerate(row) if counts]
        assert order[num_true:] == [t for t, counts in enumerate(row) if not counts]


@PROPERTY
@given(tables(float, bool), seeds, st.integers(1, 5))
def test_more_padding_leaves_the_order_alone(table, seed, num_more):
    x, mask = table
    order = random_order(x, mask, seed)
    padded = random_order(pad(x, (0, num_more), value=7.0), pad(mask, (0, num_more)), seed)
    assert torch.equal(padded[:, : x.shape[1]], order)


@PROPERTY
@given(tables(float, bool), seeds)
def test_other_rows_leave_the_order_alone(table, seed):
    x, mask = table
    together = random_order(x, mask, seed)
    for b in range(len(x)):
        assert torch.equal(random_order(x[b : b + 1], mask[b : b + 1], seed)[0], together[b])


@PROPERTY
@given(tables(float, bool), seeds)
def test_masked_tokens_between_leave_the_order_alone(table, seed):
    """The true tokens of a row are reordered as if nothing stood between them."""
    x, mask = table
    orders = random_order(x, mask, seed)
    for order, row, counts in zip(orders, x, mask, strict=True):
        dense = row[counts][None]
        expected = random_order(dense, every(dense), seed)[0]
        assert torch.equal(order[: dense.shape[1]], counts.nonzero()[:, 0][expected])


def test_many_rows_of_three_tokens_take_all_six_orders_evenly():
    x = noise(3000, 3)
    found = [tuple(order) for order in random_order(x, every(x), seed=5).tolist()]
    assert_even([found.count(order) for order in itertools.permutations(range(3))], len(found))


def test_many_seeds_give_one_row_all_six_orders_evenly():
    x = torch.tensor([[1.0, 1.0, 1.0]])
    found = [tuple(random_order(x, every(x), seed)[0].tolist()) for seed in range(1200)]
    assert_even([found.count(order) for order in itertools.permutations(range(3))], len(found))


def test_rows_that_differ_in_one_last_bit_are_ordered_apart():
    x = torch.ones(2000, 3)
    x[:, 1] = torch.arange(2000) * 2.0**-23 + 1.0
    found = [tuple(order) for order in random_order(x, every(x), seed=0).tolist()]
    assert_even([found.count(order) for order in itertools.permutations(range(3))], len(found))


def test_a_token_lands_on_every_place_evenly():
    x = noise(3500, 7)
    order = random_order(x, every(x), seed=2)
    for place in range(7):
        assert_even([(order[:, place] == t).sum().item() for t in range(7)], len(x))


def test_the_same_values_in_another_order_are_another_row():
    x = noise(400, 5)
    turned = x.flip(-1)
    same = (random_order(x, every(x), 1) == random_order(turned, every(x), 1)).all(-1)
    assert same.float().mean() < 0.05


def test_neighbouring_seeds_agree_no_more_often_than_chance():
    x = noise(600, 3)
    same = (random_order(x, every(x), 4) == random_order(x, every(x), 5)).all(-1)
    assert_even([same.sum().item(), *[(~same).sum().item() / 5] * 5], len(x))


def test_the_global_generator_is_neither_read_nor_moved():
    x = noise(2, 7)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = random_order(x, every(x), 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(random_order(x, every(x), 3), first)


# permuted


@PROPERTY
@given(tables(float, bool), seeds)
def test_permuted_keeps_the_true_values_and_the_masked_tokens(table, seed):
    x, mask = table
    found = shuffle(x, mask, seed)
    for row, result, counts in zip(x, found, mask, strict=True):
        assert result[counts].sort().values.tolist() == row[counts].sort().values.tolist()
        assert result[~counts].tolist() == row[~counts].tolist()


def test_permuted_moves_things():
    x = noise(600, 3)
    changed = (shuffle(x, every(x), 0) != x).any(-1)
    assert 0.75 < changed.float().mean() < 0.9  # five orders of six


# moved


def moved_loop(row, chosen, mask, place):
    """The values that were not chosen, poured in their own order into the places that were not taken."""
    rest = iter([v for v, c, m in zip(row, chosen, mask, strict=True) if m and not c])
    return [next(rest) if m and not p else None for p, m in zip(place, mask, strict=True)]


@PROPERTY
@given(tables(float, bool, bool), seeds)
def test_moved_values_are_neither_lost_nor_made_up(table, seed):
    x, mask, chosen = table
    chosen = chosen & mask
    found, place = move(with_nan(x, mask), chosen, mask, seed)
    assert not (place & ~mask).any()
    assert place.sum(-1).tolist() == chosen.sum(-1).tolist()
    for b in range(len(x)):
        assert sorted(found[b][place[b]].tolist()) == sorted(x[b][chosen[b]].tolist())
        expected = moved_loop(*(t[b].tolist() for t in (x, chosen, mask, place)))
        kept = [(f, e) for f, e in zip(found[b].tolist(), expected, strict=True) if e is not None]
        assert all(value == wanted for value, wanted in kept)
        assert found[b][~mask[b]].isnan().all()


@PROPERTY
@given(tables(float, bool, bool), seeds, st.integers(1, 5))
def test_more_padding_leaves_the_places_alone(table, seed, num_more):
    x, mask, chosen = table
    found, place = move(x, chosen & mask, mask, seed)
    wide = [pad(t, (0, num_more)) for t in (x, chosen & mask, mask)]
    wide_found, place_wide = move(*wide, seed)
    assert torch.equal(wide_found[:, : x.shape[1]], found)
    assert torch.equal(place_wide, pad(place, (0, num_more)))


def test_a_chosen_token_lands_on_every_place_evenly():
    x, chosen = noise(3000, 5), torch.tensor([[False, True, False, False, False]]).expand(3000, 5)
    _, place = move(x, chosen, every(x), seed=9)
    assert_even(place.sum(0).tolist(), len(x))


def test_chosen_values_land_in_random_order():
    x, chosen = noise(1000, 5), torch.tensor([[True, False, False, True, False]]).expand(1000, 5)
    found, place = move(x, chosen, every(x), seed=9)
    in_order = (found[place].view(-1, 2) == x[chosen].view(-1, 2)).all(-1).sum().item()
    assert_even([in_order, len(x) - in_order], len(x))


def test_seeds_give_different_places():
    x, chosen = noise(1, 7).expand(1, 7), torch.tensor([[1, 0, 0, 0, 0, 0, 0]]).bool()
    found = {tuple(move(x, chosen, every(x), seed)[1][0].tolist()) for seed in range(60)}
    assert len(found) == 7


# tokens_first


@PROPERTY
@given(tables(bool))
def test_tokens_first_is_a_stable_partition(table):
    (mask,) = table
    for found, row in zip(tokens_first(mask).tolist(), mask.tolist(), strict=True):
        assert found == sorted(range(len(row)), key=lambda t: not row[t])  # sorted() is stable


def test_permuted_by_hand():
    x, mask = torch.tensor([[5.0, 0.5, 6.0, 7.0]]), torch.tensor([[True, False, True, True]])
    assert permuted(x, torch.tensor([[3, 0, 2, 1]]), mask).tolist() == [[6.0, 0.5, 7.0, 5.0]]
