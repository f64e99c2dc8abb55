"""The trust that a prefix has left, where it ends, and against a plain loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_rl.tensor.trust import prefix_trust

NAN = float("nan")


def trust(ratios, decay, mask=None, dtype=torch.float32):
    row = torch.tensor([ratios], dtype=dtype)
    counts = torch.ones_like(row, dtype=torch.bool) if mask is None else torch.tensor([mask]).bool()
    return prefix_trust(row, counts, decay)[0].tolist()


def test_an_impossible_token_leaves_nothing_and_is_forgotten():
    found = trust([-math.inf, *[0.0] * 9], 0.5)
    assert found[0] == 1.0
    assert found[1] == pytest.approx(math.exp(-30.0))
    assert found[9] == pytest.approx(math.exp(-60.0 / 2**9))
    assert trust([-math.inf, 0.0], 0.0) == [1.0, 1.0]


def test_a_number_that_is_none_spoils_what_follows():
    """So that the engine sees it and the completion falls back."""
    found = trust([0.0, NAN, 0.0, 0.0], 0.9)
    assert found[:2] == [1.0, 1.0]
    assert all(math.isnan(x) for x in found[2:])


def test_no_doubt_between_two_tokens_leaves_their_trust_equal_to_the_last_bit():
    """0.2 + 0.2 + 0.3 added up in two orders are 0.70000005 and 0.7 in float32."""
    found = trust([-0.2, -0.2, -0.3, 0.5, 0.0, NAN, 0.0], 1.0, [1, 1, 1, 1, 1, 0, 1])
    assert found[3] == pytest.approx(math.exp(-0.7))
    assert found[3] == found[4] == found[6]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(-8, 8, width=32), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0]),
    st.sampled_from([(torch.float32, 1e-4), (torch.float64, 1e-12)]),
)
def test_agrees_with_a_loop(tokens, decay, precision):
    dtype, rel = precision
    found = trust([r if kept else NAN for r, kept in tokens], decay, [kept for _, kept in tokens], dtype)
    doubt = 0.0
    for (ratio, kept), here in zip(tokens, found, strict=True):
        assert here == pytest.approx(math.exp(-doubt) if kept else 0.0, rel=rel, abs=1e-30)
        if kept:
            doubt = decay * (doubt + max(0.0, -ratio))
