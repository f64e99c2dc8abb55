"""Random places: a function of the seed and of the completion alone, and as even as chance."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from gear_rl.tensor.permute import moved, permuted, random_order
from tensor.rows import PROPERTY, by_row, tables, with_nan

seeds = st.integers(-3, 2**40)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape, seed=0):
    return torch.randint(150_000, shape, generator=torch.Generator().manual_seed(seed))


def ids_of(x):
    """Whole numbers that differ where a table of half steps does."""
    return (x.nan_to_num() * 2).long()


def shuffle(x, mask, seed):
    return permuted(x, random_order(tokens(*x.shape), mask, seed), mask)


def move(x, chosen, mask, seed):
    return moved(x, chosen, random_order(ids_of(x), mask, seed), mask)


def every(x):
    return torch.ones_like(x, dtype=torch.bool)


U64 = (1 << 64) - 1


def mixed(x):
    """The next output of splitmix64 (Steele, Lea, Flood 2014) after state ``x - 1`` steps, in whole numbers."""
    x = x * 0x9E3779B97F4A7C15 & U64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & U64
    return x ^ (x >> 31)


def order_loop(row, mask, seed, step):
    """One row token by token: its True tokens by their keys, then the others."""
    true = [t for t, counts in enumerate(mask) if counts]
    row_key = sum(mixed(row[t] & U64 ^ mixed(rank)) for rank, t in enumerate(true))
    chosen = mixed(mixed(seed & U64) + step & U64)

    def key(rank):
        found = mixed(mixed(rank + 1) ^ mixed(row_key + chosen & U64))
        return (found - (1 << 64) if found >> 63 else found) >> 1

    by_key = sorted(range(len(true)), key=key)
    return [true[rank] for rank in by_key] + [t for t, counts in enumerate(mask) if not counts]


def assert_even(counts, num_draws):
    """Every outcome as often as the others, within five standard deviations of a fair draw."""
    share = 1 / len(counts)
    slack = 5 * math.sqrt(num_draws * share * (1 - share))
    assert sum(counts) == num_draws
    assert all(abs(count - num_draws * share) < slack for count in counts), counts


# random_order


def test_the_hash_is_splitmix64():
    """Its first output from state 0, as every implementation of it prints it."""
    assert mixed(1) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize(
    ("seed", "step", "order"),
    [
        (0, 0, [0, 2, 1, 4, 3]),
        (0, 1, [1, 2, 0, 3, 4]),
        (1, 0, [2, 3, 0, 1, 4]),
        (3, 0, [0, 3, 4, 1, 2]),
        (3, 1, [2, 3, 0, 4, 1]),
        (7, 2, [3, 0, 1, 4, 2]),
    ],
)
def test_golden_orders(seed, step, order):
    """A committed comparison with a placebo can be run again only while these stay."""
    ids = [5, 9, 2, 9, 40]
    assert order_loop(ids, [True] * 5, seed, step) == order
    row = torch.tensor([ids])
    assert random_order(row, every(row), seed, step).tolist() == [order]
    # tool output between and padding behind
    gaps = torch.tensor([[-1, 5, 9, -1, 2, 9, 40, -1]])
    places = [1, 2, 4, 5, 6]
    assert random_order(gaps, gaps >= 0, seed, step).tolist() == [[places[i] for i in order] + [0, 3, 7]]


@PROPERTY
@given(tables(float, bool), seeds, st.integers(0, 10**6))
def test_agrees_with_whole_numbers(table, seed, step):
    x, mask = table
    ids = ids_of(x)
    expected = by_row(lambda row, counts: order_loop(row, counts, seed, step), ids, mask)
    assert random_order(ids, mask, seed, step).tolist() == expected


@PROPERTY
@given(tables(float, bool), seeds)
def test_an_order_names_every_column_once_and_true_tokens_first(table, seed):
    x, mask = table
    found = random_order(torch.where(mask, ids_of(x), -1), mask, seed).tolist()
    for order, row in zip(found, mask.tolist(), strict=True):
        num_true = sum(row)
        assert sorted(order[:num_true]) == [t for t, counts in enumerate(row) if counts]
        assert order[num_true:] == [t for t, counts in enumerate(row) if not counts]


@PROPERTY
@given(tables(float, bool), seeds, st.integers(1, 5))
def test_more_padding_leaves_the_order_alone(table, seed, num_more):
    x, mask = table
    ids = ids_of(x)
    order = random_order(ids, mask, seed)
    padded = random_order(pad(ids, (0, num_more), value=7), pad(mask, (0, num_more)), seed)
    assert torch.equal(padded[:, : x.shape[1]], order)


@PROPERTY
@given(tables(float, bool), seeds)
def test_other_rows_leave_the_order_alone(table, seed):
    x, mask = table
    ids = ids_of(x)
    together = random_order(ids, mask, seed)
    for b in range(len(x)):
        assert torch.equal(random_order(ids[b : b + 1], mask[b : b + 1], seed)[0], together[b])


@PROPERTY
@given(tables(float, bool), seeds)
def test_masked_tokens_between_leave_the_order_alone(table, seed):
    """The true tokens of a row are reordered as if nothing stood between them."""
    x, mask = table
    ids = ids_of(x)
    orders = random_order(ids, mask, seed)
    for order, row, counts in zip(orders, ids, mask, strict=True):
        dense = row[counts][None]
        expected = random_order(dense, every(dense), seed)[0]
        assert torch.equal(order[: dense.shape[1]], counts.nonzero()[:, 0][expected])


@PROPERTY
@given(tables(float, bool), seeds, st.integers(0, 10**6))
def test_equal_completions_are_ordered_alike(table, seed, step):
    x, mask = table
    ids = ids_of(x).repeat(2, 1)
    order = random_order(ids, mask.repeat(2, 1), seed, step)
    assert torch.equal(order[: len(x)], order[len(x) :])


def test_many_rows_of_three_tokens_take_all_six_orders_evenly():
    x = tokens(3000, 3)
    found = [tuple(order) for order in random_order(x, every(x), seed=5).tolist()]
    assert_even([found.count(order) for order in itertools.permutations(range(3))], len(found))


@pytest.mark.parametrize("varied", ["seed", "step"])
def test_many_seeds_or_steps_give_one_row_all_six_orders_evenly(varied, unchecked):
    x = torch.tensor([[1, 1, 1]])
    found = [tuple(random_order(x, every(x), **({"seed": 0} | {varied: n}))[0].tolist()) for n in range(1200)]
    assert_even([found.count(order) for order in itertools.permutations(range(3))], len(found))


def test_rows_that_differ_in_one_token_are_ordered_apart():
    x = torch.ones(2000, 3, dtype=torch.long)
    x[:, 1] = torch.arange(2000)
    found = [tuple(order) for order in random_order(x, every(x), seed=0).tolist()]
    assert_even([found.count(order) for order in itertools.permutations(range(3))], len(found))


def test_a_token_lands_on_every_place_evenly():
    x = tokens(3500, 7)
    order = random_order(x, every(x), seed=2)
    for place in range(7):
        assert_even([(order[:, place] == t).sum().item() for t in range(7)], len(x))


def test_the_same_tokens_in_another_order_are_another_row():
    x = tokens(400, 5)
    turned = x.flip(-1)
    same = (random_order(x, every(x), 1) == random_order(turned, every(x), 1)).all(-1)
    assert same.float().mean() < 0.05


@pytest.mark.parametrize(("one", "other"), [((4, 0), (5, 0)), ((4, 0), (4, 1)), ((4, 1), (5, 0))])
def test_neighbouring_seeds_and_steps_agree_no_more_often_than_chance(one, other):
    x = tokens(600, 3)
    same = (random_order(x, every(x), *one) == random_order(x, every(x), *other)).all(-1)
    assert_even([same.sum().item(), *[(~same).sum().item() / 5] * 5], len(x))


def test_the_global_generator_is_neither_read_nor_moved():
    x = tokens(2, 7)
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


def test_permuted_by_hand():
    x, mask = torch.tensor([[5.0, 0.5, 6.0, 7.0]]), torch.tensor([[True, False, True, True]])
    assert permuted(x, torch.tensor([[3, 0, 2, 1]]), mask).tolist() == [[6.0, 0.5, 7.0, 5.0]]
