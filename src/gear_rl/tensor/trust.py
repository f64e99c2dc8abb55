"""How far the teacher still agrees with the prefix that the student has written.

Once the student has left the teacher's path, the teacher disagrees with whatever is consistent with the mistake,
and its divergence there shows where the student went, not where it erred.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_MOST_NATS = 60.0
"""Clamp of one token's shortfall: exp underflows there, and inf * 0 is NaN."""


def prefix_trust(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], decay: float
) -> Float[Tensor, "B T"]:
    """``exp(-u_t)``, the discount of the tokens before ``t``; 1 at the first, 0 outside the mask.

    ``log_ratio`` is ``log q(y_t) - log p(y_t)``, teacher over student, in nats; ``u_0 = 0`` and
    ``u_t = decay (u_{t-1} + max(0, -log_ratio_{t-1}))`` over the True tokens. At ``decay=1`` the discount is the
    product of the ratios of the whole prefix, each truncated at 1, as in Retrace (arXiv:1606.02647); below 1 a
    divergence is forgotten after some ``1 / (1 - decay)`` tokens. NaN stays NaN in the rest of its row.

    >>> everywhere = torch.ones(1, 3, dtype=torch.bool)
    >>> prefix_trust(torch.tensor([[0.5, -1.0, 0.0]]), everywhere, decay=1.0)
    tensor([[1.0000, 1.0000, 0.3679]])
    """
    shortfall = torch.where(mask, (-log_ratio).clamp(0.0, _MOST_NATS), 0.0)
    # u after each token is keep * (u before it) + added: affine maps, composed in log2(T) rounds (Hillis-Steele).
    keep = torch.ones_like(shortfall).masked_fill(mask, decay)
    added = keep * shortfall
    step = 1
    while step < mask.shape[-1]:
        before = torch.nn.functional.pad(added[:, :-step], (step, 0))
        added = added + keep * before
        keep = keep * torch.nn.functional.pad(keep[:, :-step], (step, 0), value=1.0)
        step *= 2
    if decay == 1.0:
        # Each column adds the same numbers in another order; without a shortfall between them two tokens must
        # have the same discount to the last bit, or divergences that tie would no longer tie.
        column = torch.arange(mask.shape[-1], device=mask.device)
        added = added.gather(-1, torch.where(shortfall != 0, column, 0).cummax(-1).values)
    total = torch.zeros_like(added)
    total[:, 1:] = added[:, :-1]
    return torch.where(mask, (-total).exp(), 0.0)
