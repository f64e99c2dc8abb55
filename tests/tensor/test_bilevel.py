"""Bi-level reshaping: the loop over one row that defines it."""

import math
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.bilevel import bilevel_weights
from tensor.tables import PROPERTY, tables, with_nan


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
