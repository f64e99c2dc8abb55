"""Bi-level reshaping of a saliency into weights (Outcome-Grounded Advantage Reshaping, arXiv:2601.07408)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.tensor.masked import masked_minmax, masked_quantile

_EPS = 1e-8  # added to every denominator, as in the released snippet


def bilevel_weights(
    saliency: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    threshold: float = 0.25,
    boost: float = 1.0,
    min_weight: float = 0.1,
) -> Float[Tensor, "B T"]:
    """A weight for each True token; 0 on masked tokens.

    ``n`` is ``log(1 + saliency)`` stretched over the row from 0 to 1 (all 0 where it is flat), ``q`` the row's
    own ``threshold``-quantile of ``n``, linear between neighbours. Below ``q`` the weight is
    ``max(n / q, min_weight)``, from ``q`` on it is ``1 + boost (n - q) / (1 - q)``; then the row is scaled to
    mean 1. A negative saliency counts as 0. A flat row and a row of one token weigh 1.

    >>> saliency = torch.tensor([0.0, 1.0, 3.0, 7.0]).view(1, 4)  # n = 0, 1/3, 2/3, 1 and q = 1/3
    >>> everywhere = torch.ones(1, 4, dtype=torch.bool)
    >>> bilevel_weights(saliency, everywhere, threshold=1 / 3)  # 0.1, 1, 3/2 and 2, times 4/4.6
    tensor([[0.0870, 0.8696, 1.3043, 1.7391]])
    """
    level = masked_minmax(saliency.clamp(min=0).log1p(), mask)
    q = masked_quantile(level, mask, threshold)
    held = (level / (q + _EPS)).clamp(min=min_weight)
    lifted = 1.0 + boost * (level - q) / (1.0 - q + _EPS)
    weight = torch.where(mask, torch.where(level < q, held, lifted), 0.0)
    return weight * (mask.sum(-1, keepdim=True) / (weight.sum(-1, keepdim=True) + _EPS))
