"""Bi-level reshaping of a saliency into weights (Outcome-Grounded Advantage Reshaping, arXiv:2601.07408)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.tensor.masked import masked_minmax, masked_quantile

QuantileRule = Literal["linear", "floor"]
_EPS = 1e-8  # added to every denominator, as in the released snippet


def bilevel_weights(
    saliency: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    threshold: float = 0.25,
    quantile_rule: QuantileRule = "linear",
    boost: float = 1.0,
    min_weight: float = 0.1,
    keep_mass: bool = True,
) -> Float[Tensor, "B T"]:
    """A weight for each True token; 0 on masked tokens.

    ``n`` is ``log(1 + saliency)`` stretched over the row from 0 to 1 (all 0 where it is flat), ``q`` the row's
    own ``threshold``-quantile of ``n``: ``linear`` between neighbours, or with ``floor`` the token of that rank,
    ``sorted[floor(threshold * L)]``. Below ``q`` the weight is ``max(n / q, min_weight)``, from ``q`` on it is
    ``1 + boost (n - q) / (1 - q)``. With ``keep_mass`` the row is then scaled to mean 1. A negative saliency
    counts as 0. A flat row and a row of one token weigh 1.

    >>> saliency = torch.tensor([0.0, 1.0, 3.0, 7.0]).view(1, 4)  # n = 0, 1/3, 2/3, 1 and q = 1/3
    >>> everywhere = torch.ones(1, 4, dtype=torch.bool)
    >>> bilevel_weights(saliency, everywhere, threshold=1 / 3, keep_mass=False)
    tensor([[0.1000, 1.0000, 1.5000, 2.0000]])
    >>> bilevel_weights(saliency, everywhere, threshold=1 / 3).sum()
    tensor(4.)
    """
    level = masked_minmax(saliency.clamp(min=0).log1p(), mask)
    q = (masked_quantile if quantile_rule == "linear" else _value_at_rank)(level, mask, threshold)
    held = (level / (q + _EPS)).clamp(min=min_weight)
    lifted = 1.0 + boost * (level - q) / (1.0 - q + _EPS)
    weight = torch.where(mask, torch.where(level < q, held, lifted), 0.0)
    if keep_mass:
        weight = weight * (mask.sum(-1, keepdim=True) / (weight.sum(-1, keepdim=True) + _EPS))
    return weight


def _value_at_rank(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: float) -> Float[Tensor, "B 1"]:
    """The True token of rank ``floor(level * L)`` of each row, from 0; 0 for an empty row."""
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[0], 1)
    count = mask.sum(-1, keepdim=True)
    # 100 * 0.29 is a little less than 29, and must not become 28.
    rank = (count.double() * level).round(decimals=6).floor().long()
    rank = torch.minimum(rank, count - 1).clamp(min=0)
    value = torch.where(mask, x, torch.inf).sort(-1).values.gather(-1, rank)
    return torch.where(mask.any(-1, keepdim=True), value, 0.0)
