"""Random places: a function of the seed and of the completion alone."""

import pytest
import torch

from gear_rl.tensor.permute import random_order

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
    assert random_order(row, row >= 0, seed, step).tolist() == [order]
    # tool output between and padding behind
    gaps = torch.tensor([[-1, 5, 9, -1, 2, 9, 40, -1]])
    places = [1, 2, 4, 5, 6]
    assert random_order(gaps, gaps >= 0, seed, step).tolist() == [[places[i] for i in order] + [0, 3, 7]]
