"""The group-relative advantage of GRPO, for the arena, the examples and the tests.

An engine brings its own base advantage, and a method never recomputes it: five trainers compute "the GRPO
advantage" five ways (docs/glossary.md, *advantage*).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def group_relative_advantage(
    reward_B: Float[Tensor, " B"], group_size: int, epsilon: float = 1e-4, scale: bool = True
) -> Float[Tensor, " B"]:
    """Reward minus the group's mean, over the group's sample standard deviation plus ``epsilon``.

    Rows of one group stand together: rows ``0 .. group_size - 1`` are the first group. ``epsilon`` is TRL's
    1e-4 (verl uses 1e-6). A group of one has advantage 0: there is nothing to compare it with. With
    ``scale=False`` only the mean is taken off (Dr. GRPO, arXiv:2503.20783). GRPO: arXiv:2402.03300, section
    4.1.2. Raises ``ValueError`` if the rows do not divide into groups.

    >>> group_relative_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group_size=4)
    tensor([ 1.4997, -0.4999, -0.4999, -0.4999])
    """
    if group_size < 1 or len(reward_B) % group_size:
        raise ValueError(f"group_size: {len(reward_B)} rewards do not divide into groups of {group_size}")
    reward_group = reward_B.view(-1, group_size)
    centred = reward_group - reward_group.mean(-1, keepdim=True)
    if scale:
        compared = group_size > 1 and len(reward_B) > 0
        spread = reward_group.std(-1, keepdim=True) if compared else torch.zeros_like(centred)
        centred = centred / (spread + epsilon)
    return centred.view(-1)
