"""Reductions over the True tokens: each agrees with plain Python on the list of a row's True tokens."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.tensor.masked import (
    masked_max,
    masked_mean,
    masked_min,
    masked_quantile,
)
from tensor.tables import PROPERTY, tables, with_nan


def same(found, expected_rows):
    """Equal to the rows up to float32 rounding, with no NaN anywhere."""
    expected = torch.tensor(expected_rows, dtype=torch.float64).view(found.shape)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def true_tokens(x, mask):
    return [row[counts].tolist() for row, counts in zip(x, mask, strict=True)]


@pytest.mark.parametrize(
    ("routine", "of_list"), [(masked_mean, statistics.fmean), (masked_min, min), (masked_max, max)]
)
@PROPERTY
@given(table=tables(float, bool), fill=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_reductions_are_those_of_the_true_tokens(routine, of_list, table, fill):
    x, mask = table
    expected = [of_list(row) if row else 0.0 for row in true_tokens(x, mask)]
    same(routine(torch.where(mask, x, fill), mask), expected)


@PROPERTY
@given(
    tables(float, bool), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0]) | st.floats(0, 1, width=32)
)
def test_quantile_agrees_with_torch_on_the_true_tokens(table, level):
    x, mask = table
    rows = [torch.tensor(row, dtype=torch.float64) for row in true_tokens(x, mask)]
    expected = [torch.quantile(row, level).item() if len(row) else 0.0 for row in rows]
    same(masked_quantile(with_nan(x, mask), mask, level), expected)


@pytest.mark.parametrize("length", [10, 11, 20, 21, 26, 31, 41, 101])
@pytest.mark.parametrize("tenths", range(11))
def test_a_quantile_that_stands_on_a_token_is_that_token(length, tenths):
    """25 * 0.6 is a little more than 15 in float32; n - ceil((n - 1) s) tokens lie at or above the quantile."""
    x = torch.rand(1, length, generator=torch.Generator().manual_seed(length))
    at_or_above = x >= masked_quantile(x, torch.ones_like(x, dtype=torch.bool), tenths / 10)
    assert at_or_above.sum() == length + (-(length - 1) * tenths // 10)


def test_a_quantile_is_not_above_the_tokens_around_it():
    """The level is a little less than 0.2; rounded up, the quantile would leave out the second of six tokens."""
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)).exp()
    at_or_above = x >= masked_quantile(x, torch.ones_like(x, dtype=torch.bool), 1 - 0.8)
    assert (at_or_above.sum(-1) == 5).all()
