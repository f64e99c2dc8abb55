"""Random tables of tokens, and tiles of any size, for the tests of the tensor package."""

from unittest.mock import patch

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from gear_rl.tensor import logits

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
"""The same forty examples in every run."""


@st.composite
def tables(draw, *kinds: type, max_tokens: int = 10) -> tuple[Tensor, ...]:
    """One (B, T) tensor for each kind, ``float`` (few values, many ties) or ``bool``; maybe no row or column."""
    shape = draw(st.sampled_from([0, 1, 30, 30])), draw(st.integers(0, max_tokens))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    columns = []
    for kind in kinds:
        if kind is float:
            columns.append(torch.randint(-2, 3, shape, generator=g) / 2)
        else:
            columns.append(torch.rand(shape, generator=g) < draw(st.sampled_from([0.2, 0.5, 0.8])))
    return tuple(columns)


def with_nan(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` with NaN on masked tokens: what stands there must not be read."""
    return torch.where(mask, x, torch.nan)


def by_row(loop, *tensors: Tensor) -> list[list]:
    """What a loop over the tokens of one row says of every row."""
    return [loop(*(t[b].tolist() for t in tensors)) for b in range(tensors[0].shape[0])]


def tiled(function, *args, token_tile: int = 2**30, vocab_tile: int = 2**30, **more):
    """``function`` with tiles of a size of the test's own instead of the one for large models."""

    def shape(num_tokens, head):
        return max(1, min(num_tokens, token_tile)), min(len(head.weight_VD), vocab_tile)

    with patch.object(logits, "tile_shape", shape):
        return function(*args, **more)
