"""The group-relative advantage of GRPO, for examples and tests: an engine brings its own."""

import torch
from jaxtyping import Float, Real
from torch import Tensor


def group_relative_advantage(
    reward_B: Real[Tensor, " B"], group_size: int, epsilon: float = 1e-4, scale: bool = True
) -> Float[Tensor, " B"]:
    """Reward minus the group's mean, over the group's sample standard deviation plus ``epsilon``.

    Rows ``0 .. group_size - 1`` are the first group. ``epsilon`` is TRL's 1e-4 (verl uses 1e-6). A group of one
    has advantage 0, and equal rewards have exactly 0. With ``scale=False`` only the mean is subtracted (Dr. GRPO,
    arXiv:2503.20783). Raises ``ValueError`` if the rows do not divide into groups.

    >>> group_relative_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group_size=4)
    tensor([ 1.4997, -0.4999, -0.4999, -0.4999])
    """
    if group_size < 1 or len(reward_B) % group_size:
        raise ValueError(f"group_size: {len(reward_B)} rewards do not divide into groups of {group_size}")
    reward_group = (reward_B if reward_B.is_floating_point() else reward_B.float()).view(-1, group_size)
    reward_group = (
        reward_group - reward_group[:, :1]
    )  # the mean of equal rewards may be rounded, that of 0 is not
    centred = reward_group - reward_group.mean(-1, keepdim=True)
    if scale:
        spread = reward_group.std(-1, keepdim=True) if group_size > 1 else torch.zeros_like(centred)
        centred = centred / (spread + epsilon)
    return centred.view(-1)
