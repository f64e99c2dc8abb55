"""Distances from hidden states at hand, against the loop over one pair of windows at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.signals.transport import token_distances
from tensor.tables import PROPERTY

pytest.importorskip("ot", reason="POT is an extra: pip install 'gear-rl[shear]'")
from signals.transport_loop import agree, by_loop, random_states

RIGHT = [True, False, True, False, False]


@settings(PROPERTY, max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 99),
    st.sampled_from([1e-6, 0.02, 64.0]),  # one pair, small tiles, one tile
)
def test_agrees_with_the_loop_over_pairs_of_windows(lengths, stride, wider, seed, max_mb):
    right = [i % 2 == seed % 2 for i in range(len(lengths))]
    states = random_states(lengths, seed=seed, num_dims=3)
    windows = {"window_tokens": stride + wider, "stride_tokens": stride}
    options = {"regularisation": 0.2, "iterations": 500, "max_mb": max_mb}
    found = token_distances(states, right, **windows, **options)
    agree(found, by_loop(states, right, stride + wider, stride, 0.2))


def test_equal_states_are_no_distance_apart():
    """In float32 the product of two matrices sees them 0.0003 apart; more than 25 rows take that way."""
    g = torch.Generator().manual_seed(3)
    # Far from each other, so that at this regularisation each goes to its twin.
    states = torch.nn.functional.normalize(torch.randn(40, 64, generator=g), dim=-1)
    for value in token_distances([states, states.flip(0)], [True, False]):
        assert value.max() < 1e-5


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("right", [RIGHT, [not r for r in RIGHT]], ids=["short rows", "short columns"])
def test_neither_tiles_nor_padding_change_anything_long_before_convergence(iterations, right):
    states = random_states([2, 11, 4, 7, 4])
    options = {"window_tokens": 4, "stride_tokens": 3, "iterations": iterations}
    alone = token_distances(states, right, max_mb=1e-6, **options)
    agree(token_distances(states, right, max_mb=64.0, **options), alone, 1e-5)
