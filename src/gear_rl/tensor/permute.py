"""Reorder the tokens of a completion at random, the same way wherever and whenever it is computed.

Placebos need randomness that is a function of a seed, a step and the completion's tokens alone: not of the
batch, the padding, the device or a global generator. So the random keys are a hash of whole numbers.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.tensor.masked import masked_rank


def random_order(
    token_id: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], seed: int, step: int = 0
) -> Int[Tensor, "B T"]:
    """Column numbers of each row: its True tokens in random order, then its masked ones from left to right.

    The order depends on ``seed``, ``step`` and the row's True ``token_id`` alone.

    >>> token_id = torch.tensor([[11, 12, 13, -1]])
    >>> random_order(token_id, torch.tensor([[True, True, True, False]]), seed=1)
    tensor([[1, 0, 2, 3]])
    """
    rank = masked_rank(mask)
    row_key = torch.where(mask, _mix(token_id ^ _mix(rank)), 0).sum(-1, keepdim=True)
    chosen = _mix(_mix(torch.full_like(row_key, seed)) + step)
    token_key = _mix(_mix(rank + 1) ^ _mix(row_key + chosen))
    # The largest int64 sends masked tokens to the end; a stable sort keeps them from left to right.
    return torch.where(mask, token_key >> 1, torch.iinfo(torch.int64).max).sort(dim=-1, stable=True).indices


def permute_values(
    x: Float[Tensor, "B T"], order: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The True tokens' values of each row, the i-th moved to the i-th column of ``order``; masked ones stay put.

    >>> x, mask = torch.tensor([[5.0, 6.0, 7.0, 9.0]]), torch.tensor([[True, True, True, False]])
    >>> permute_values(x, torch.tensor([[2, 0, 1, 3]]), mask)
    tensor([[6., 7., 5., 9.]])
    """
    return torch.empty_like(x).scatter(-1, order, x.gather(-1, _tokens_first(mask)))


def move_values(
    x: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"], order: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """``x`` with its ``chosen`` tokens' values moved to the first columns of ``order``, and the mask of these.

    The other True values fill the remaining places in their own order; masked ones stay put. ``chosen`` tokens
    must be True in ``mask``.

    >>> x, chosen = torch.tensor([[7.0, 1.0, 2.0]]), torch.tensor([[True, False, False]])
    >>> move_values(x, chosen, torch.tensor([[1, 2, 0]]), torch.ones_like(chosen))
    (tensor([[1., 7., 2.]]), tensor([[False,  True, False]]))
    """
    takes = _first_columns(chosen)
    place = torch.zeros_like(chosen).scatter(-1, order, takes)
    rest, remaining = mask & ~chosen, mask & ~place
    from_columns = torch.cat([_tokens_first(chosen), _tokens_first(rest)], -1)
    to_columns = torch.cat([order, _tokens_first(remaining)], -1)
    keep = torch.cat([takes, _first_columns(rest)], -1)
    # Unused slots of the two lists read and write a spare column, which is dropped at the end.
    spare = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, 1))
    values = padded.gather(-1, torch.where(keep, from_columns, spare))
    return padded.scatter(-1, torch.where(keep, to_columns, spare), values)[:, :spare], place


def _tokens_first(mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Column numbers of each row: its True tokens from left to right, then the others from left to right."""
    return (~mask).to(torch.uint8).sort(dim=-1, stable=True).indices


def _first_columns(mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True in as many leading columns as the row has True tokens."""
    return torch.arange(mask.shape[-1], device=mask.device) < mask.sum(-1, keepdim=True)


def _mix(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A bijection of 64 bits that looks random (the finaliser of splitmix64; int64 wraps around)."""
    x = x * -7046029254386353131  # 0x9E3779B97F4A7C15
    x = (x ^ _shift_bits(x, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift_bits(x, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ _shift_bits(x, 31)


def _shift_bits(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shift right without dragging the sign bit along, as for unsigned numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
