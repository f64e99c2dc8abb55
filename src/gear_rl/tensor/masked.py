"""Reductions over the tokens that count, one value per row.

A masked token may hold anything, NaN included. A row without a True token reduces to 0.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def masked_mean(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Mean of each row's True tokens.

    >>> masked_mean(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    return torch.where(mask, x, 0.0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def masked_min(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Smallest True token of each row.

    >>> masked_min(torch.tensor([[4.0, 3.0, -9.0]]), torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[0], 1)
    least = torch.where(mask, x, torch.inf).amin(-1, keepdim=True)
    return torch.where(mask.any(-1, keepdim=True), least, 0.0)


def masked_max(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Largest True token of each row.

    >>> masked_max(torch.tensor([[4.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[4.]])
    """
    return -masked_min(-x, mask)


def masked_quantile(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: float) -> Float[Tensor, "B 1"]:
    """The ``level``-quantile of each row's True tokens, linear between neighbours.

    The rule of ``torch.quantile``, ``level`` from 0 to 1.

    >>> masked_quantile(torch.tensor([[4.0, 9.0, 1.0, 2.0]]), torch.tensor([[True, False, True, True]]), 0.5)
    tensor([[2.]])
    """
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[0], 1)
    ordered = torch.where(mask, x, torch.inf).sort(-1).values
    # In float32 25 * 0.6 is a little more than 15, which would miss the token that stands there.
    place = (mask.sum(-1, keepdim=True) - 1).clamp(min=0).double() * level
    below, above = (ordered.gather(-1, i.long()) for i in (place.floor(), place.ceil()))
    # At a whole place both neighbours are one token; the difference would be inf - inf in an empty row.
    share = (place - place.floor()).to(x.dtype)
    between = torch.minimum(below + (above - below) * share, above)  # rounded, it may lie above both
    value = torch.where(above > below, between, below)
    return torch.where(mask.any(-1, keepdim=True), value, 0.0)


def masked_rank(mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """How many True tokens stand before each True token of its row; -1 on masked tokens.

    >>> masked_rank(torch.tensor([[True, False, True]]))
    tensor([[ 0, -1,  1]])
    """
    return torch.where(mask, mask.cumsum(-1) - 1, -1)


def masked_minmax(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each row stretched so that its True tokens run from 0 to 1; all 0 if they are equal; 0 on masked tokens.

    >>> masked_minmax(torch.tensor([[1.0, 3.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]]))
    tensor([[0.0000, 1.0000, 0.5000, 0.0000]])
    """
    least, most = masked_min(x, mask), masked_max(x, mask)
    span = most - least
    stretched = (x - least) / torch.where(span > 0, span, 1.0)
    return torch.where(mask, stretched, 0.0)
