"""Reductions over the True tokens: each agrees with plain Python on the list of a row's True tokens."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gear_rl.tensor.masked import (
    masked_max,
    masked_mean,
    masked_min,
    masked_minmax,
    masked_quantile,
    masked_rank,
)
from tensor.rows import PROPERTY, by_row, tables, with_nan


def true_tokens(row, mask):
    return [value for value, counts in zip(row, mask, strict=True) if counts]


def mean_loop(row, mask):
    tokens = true_tokens(row, mask)
    return [math.fsum(tokens) / len(tokens) if tokens else 0.0]


def min_loop(row, mask):
    return [min(true_tokens(row, mask), default=0.0)]


def max_loop(row, mask):
    return [max(true_tokens(row, mask), default=0.0)]


def quantile_loop(level):
    """Walk ``level`` of the way along the sorted tokens, linearly between two of them."""

    def loop(row, mask):
        tokens = sorted(true_tokens(row, mask))
        if not tokens:
            return [0.0]
        place = (len(tokens) - 1) * level
        below, above = tokens[math.floor(place)], tokens[math.ceil(place)]
        return [below + (above - below) * (place - math.floor(place))]

    return loop


def rank_loop(mask):
    return [sum(mask[:t]) if counts else -1 for t, counts in enumerate(mask)]


def minmax_loop(row, mask):
    tokens = true_tokens(row, mask)
    least, span = min(tokens, default=0.0), max(tokens, default=0.0) - min(tokens, default=0.0)
    pairs = zip(row, mask, strict=True)
    return [(value - least) / span if counts and span > 0 else 0.0 for value, counts in pairs]


def same(found, expected_rows):
    """Equal to the loop's rows up to float32 rounding, with no NaN anywhere."""
    expected = torch.tensor(expected_rows, dtype=torch.float64).view(found.shape)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@PROPERTY
@given(tables(float, bool))
def test_mean_is_the_mean_of_the_true_tokens(table):
    x, mask = table
    same(masked_mean(with_nan(x, mask), mask), by_row(mean_loop, x, mask))


@PROPERTY
@given(tables(float, bool))
def test_min_and_max_are_those_of_the_true_tokens(table):
    x, mask = table
    assert masked_min(with_nan(x, mask), mask).tolist() == by_row(min_loop, x, mask)
    assert masked_max(with_nan(x, mask), mask).tolist() == by_row(max_loop, x, mask)


@PROPERTY
@given(tables(float, bool), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0]))
def test_quantile_agrees_with_the_sorted_list(table, level):
    x, mask = table
    same(masked_quantile(with_nan(x, mask), mask, level), by_row(quantile_loop(level), x, mask))


@PROPERTY
@given(tables(float, bool), st.floats(0, 1, width=32))
@example((torch.tensor([[5.0, -2.0]]), torch.tensor([[True, False]])), 0.3)
def test_quantile_agrees_with_torch_on_the_true_tokens(table, level):
    x, mask = table
    found = masked_quantile(with_nan(x, mask), mask, level)
    for row, counts, value in zip(x, mask, found[:, 0], strict=True):
        if counts.any():
            expected = torch.quantile(row[counts].double(), float(level))
            torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
        else:
            assert value == 0


@PROPERTY
@given(tables(bool))
def test_rank_counts_the_true_tokens_before(table):
    (mask,) = table
    assert masked_rank(mask).tolist() == by_row(rank_loop, mask)


@PROPERTY
@given(tables(float, bool))
def test_minmax_stretches_the_true_tokens(table):
    x, mask = table
    same(masked_minmax(with_nan(x, mask), mask), by_row(minmax_loop, x, mask))


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
def test_what_a_masked_token_holds_is_never_read(fill):
    x, mask = (
        torch.tensor([[2.0, fill, 4.0], [fill, fill, fill]]),
        torch.tensor([[1, 0, 1], [0, 0, 0]]).bool(),
    )
    assert masked_mean(x, mask).tolist() == [[3.0], [0.0]]
    assert masked_min(x, mask).tolist() == [[2.0], [0.0]]
    assert masked_max(x, mask).tolist() == [[4.0], [0.0]]
    assert masked_quantile(x, mask, 0.75).tolist() == [[3.5], [0.0]]
    assert masked_minmax(x, mask).tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("num_rows", [0, 2])
def test_rows_without_columns_reduce_to_zero(num_rows):
    x, mask = torch.zeros(num_rows, 0), torch.zeros(num_rows, 0, dtype=torch.bool)
    for reduced in (
        masked_mean(x, mask),
        masked_min(x, mask),
        masked_max(x, mask),
        masked_quantile(x, mask, 0.5),
    ):
        assert reduced.tolist() == [[0.0]] * num_rows
    assert masked_minmax(x, mask).shape == masked_rank(mask).shape == (num_rows, 0)


@pytest.mark.parametrize("level", [-0.01, 1.01, math.nan])
def test_a_level_that_is_no_quantile_is_refused(level):
    with pytest.raises(ValueError, match="level"):
        masked_quantile(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), level)
