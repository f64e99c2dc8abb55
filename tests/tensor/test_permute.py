"""Random places: a function of the seed and of the completion alone."""

import pytest
import torch

from gear_rl.tensor.permute import random_order


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
    row = torch.tensor([[5, 9, 2, 9, 40]])
    assert random_order(row, row >= 0, seed, step).tolist() == [order]
    # tool output between and padding behind
    gaps = torch.tensor([[-1, 5, 9, -1, 2, 9, 40, -1]])
    places = [1, 2, 4, 5, 6]
    assert random_order(gaps, gaps >= 0, seed, step).tolist() == [[places[i] for i in order] + [0, 3, 7]]
