"""Random tables of tokens, and tiles of any size, for the tests of the tensor package."""

from unittest.mock import patch

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from gear_rl.tensor import divergences, logits

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
"""The same forty tables in every run."""

half_steps = st.integers(-6, 6).map(lambda i: i / 2)
"""Few values, exact in float32: ties are common, and no test fails for the last bit."""


CELLS = {float: (half_steps, torch.float32), bool: (st.booleans(), torch.bool)}


@st.composite
def tables(draw, *kinds: type, max_tokens: int = 10) -> tuple[Tensor, ...]:
    """One (B, T) tensor for each kind, ``float`` or ``bool``; there may be no row, and no column."""
    num_rows, num_tokens = draw(st.integers(0, 3)), draw(st.integers(0, max_tokens))
    columns = []
    for kind in kinds:
        cell, dtype = CELLS[kind]
        cells = draw(st.lists(cell, min_size=num_rows * num_tokens, max_size=num_rows * num_tokens))
        columns.append(torch.tensor(cells, dtype=dtype).view(num_rows, num_tokens))
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

    with patch.object(logits, "tile_shape", shape), patch.object(divergences, "tile_shape", shape):
        return function(*args, **more)
