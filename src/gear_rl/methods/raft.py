"""RAFT: fine-tune on the best completions of each group, a baseline."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import settings_class
from gear_rl.tensor.groups import group_numbers
from gear_rl.types import Credit, TokenSignals


@settings_class
class Raft:
    """A group's best completions are imitated, the others ignored.

    Reward-ranked fine-tuning (RAFT, arXiv:2304.06767), on-policy: ``A_t = 1`` where the reward is the group's
    highest, else 0; 0 in a group of equal rewards. One segment per completion. **Additive**: it replaces the
    engine's advantage. The paper keeps the single best for a few epochs; ours keeps all that tie, for one step.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(3, 1, dtype=torch.bool),
    ...     group_B=torch.tensor([0, 0, 1]),
    ...     reward_B=torch.tensor([0.5, 1.0, 1.0]),
    ... )
    >>> Raft()(torch.tensor([-0.7, 0.7, 0.0]), signals).advantage.flatten()
    tensor([0., 1., 0.])
    """

    name: ClassVar[str] = "raft"
    source: ClassVar[str] = "arXiv:2304.06767"
    even: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[str, ...]:
        return ("group_B", "reward_B")

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        reward_B, number_B = (
            signals.get("reward_B").to(advantage_B.dtype),
            group_numbers(signals.get("group_B")),
        )
        best_B, worst_B = (
            torch.zeros_like(reward_B).scatter_reduce(0, number_B, reward_B, kind, include_self=False)[
                number_B
            ]
            for kind in ("amax", "amin")
        )
        kept_B = ((reward_B == best_B) & (best_B > worst_B)).to(advantage_B.dtype)
        advantage = torch.where(signals.mask, kept_B[:, None], 0.0)
        return Credit(advantage=advantage, segment_id=torch.where(signals.mask, 0, -1))
