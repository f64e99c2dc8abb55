"""Bi-level reshaping: numbers worked by hand from arXiv:2601.07408, and the loop over one row that defines it."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.bilevel import bilevel_weights
from tensor.tables import PROPERTY, tables, with_nan


def doublings(*rows):
    """Saliencies 2^k - 1, so that log(1 + s) is k log 2; None is a masked token."""
    saliency = torch.tensor([[math.nan if k is None else 2.0**k - 1 for k in row] for row in rows])
    return saliency, ~saliency.isnan()


TWO = doublings([0, 1, 1, 2, 10], [0, 2, 8, 4, None])
"""n = 0, 1/10, 1/10, 2/10, 1 and 0, 1/4, 1, 1/2: with threshold 1/2, q = 1/10 and (1/4 + 1/2) / 2 = 3/8."""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            # First row: 0 is held at 0.1; 1/10 and 1/10 lie at q: 1; 1 + (2/10 - 1/10) / (9/10) = 10/9; 2.
            # Second: 0.1; (1/4) / (3/8) = 2/3; 1 + (5/8) / (5/8) = 2; 1 + (1/8) / (5/8) = 6/5.
            {"threshold": 0.5},
            [[0.1, 1, 1, 10 / 9, 2], [0.1, 2 / 3, 2, 6 / 5, 0]],
        ),
        ({"threshold": 0.5, "min_weight": 0.7}, [[0.7, 1, 1, 10 / 9, 2], [0.7, 0.7, 2, 6 / 5, 0]]),
        # q = 0: nothing is held. q = 1: nothing is lifted.
        ({"threshold": 0.0}, [[1, 1.1, 1.1, 1.2, 2], [1, 1.25, 2, 1.5, 0]]),
        ({"threshold": 1.0}, [[0.1, 0.1, 0.1, 0.2, 1], [0.1, 0.25, 1, 0.5, 0]]),
    ],
)
def test_worked_by_hand(settings, expected):
    scaled = bilevel_weights(*TWO, **settings)
    by_row = [[w * length / sum(row) for w in row] for row, length in zip(expected, (5, 4), strict=True)]
    torch.testing.assert_close(scaled, torch.tensor(by_row), atol=1e-6, rtol=1e-6)


def slow(saliency, mask, threshold, boost, min_weight):
    tokens = [t for t, counts in enumerate(mask) if counts]
    weights = [0.0] * len(mask)
    if not tokens:
        return weights
    levels = {t: math.log(1 + max(saliency[t], 0.0)) for t in tokens}
    least, span = min(levels.values()), max(levels.values()) - min(levels.values())
    n = {t: (level - least) / (span or 1.0) for t, level in levels.items()}
    ordered, tau = sorted(n.values()), Fraction(str(threshold))
    place = tau * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    q = below + (above - below) * float(place - math.floor(place))
    for t in tokens:
        if n[t] < q:
            weights[t] = max(n[t] / (q + 1e-8), min_weight)
        else:
            weights[t] = 1 + boost * (n[t] - q) / (1 - q + 1e-8)
    total = sum(weights)
    return [w * len(tokens) / (total + 1e-8) for w in weights]


@PROPERTY
@given(
    tables(float, bool),
    st.sampled_from([0.0, 0.25, 0.4, 0.5, 0.7, 0.29, 1.0]),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_agrees_with_the_loop_and_reads_nothing_masked(table, threshold, boost, min_weight):
    saliency, mask = table
    settings = {"threshold": threshold, "boost": boost, "min_weight": min_weight}
    found = bilevel_weights(with_nan(saliency, mask), mask, **settings)
    rows = zip(saliency.tolist(), mask.tolist(), strict=True)
    expected = [slow(x, m, **settings) for x, m in rows]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float32).view(found.shape), atol=2e-5, rtol=2e-5
    )
