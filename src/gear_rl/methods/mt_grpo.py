"""MT-GRPO: the first turn has an advantage of its own reward."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import NotNegative, Positive, settings_class
from gear_rl.tensor.groups import group_relative, turn_values
from gear_rl.types import Credit, TokenSignals


@settings_class
class MtGrpo:
    """The first turn gets the advantage of its own reward on top of the completion's; later turns do not.

    MT-GRPO (arXiv:2505.11821): the first turn gets ``A + turn_weight norm(T)``, later turns ``A``; a completion
    without a second turn gets ``norm(T + R)``. ``T`` is the first turn's ``turn_reward``, ``R`` the completion's
    reward, ``norm(x) = (x - mean) / (std + epsilon)`` over the group. The turn is the segment. **Additive**.

    Rewards of later turns are not read.

    >>> signals = TokenSignals(
    ...     mask=torch.tensor([[True, False, True], [True, False, True]]),
    ...     group_B=torch.tensor([0, 0]),
    ...     reward_B=torch.tensor([1.0, 0.0]),
    ...     turn_reward=torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]),
    ... )
    >>> MtGrpo()(torch.tensor([0.5, -0.5]), signals).advantage  # norm(T) is -0.7071 and 0.7071
    tensor([[-0.2071,  0.0000,  0.5000],
            [ 0.2071,  0.0000, -0.5000]])
    """

    name: ClassVar[str] = "mt_grpo"
    source: ClassVar[str] = "arXiv:2505.11821"
    additive: ClassVar[bool] = True

    turn_weight: NotNegative = 1.0
    """Weight of the first turn's advantage, the paper's alpha; 0 gives GRPO."""
    epsilon: Positive = 1e-4
    """Added to the group's deviation."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("group_B", "reward_B", "turn_reward") if self.turn_weight > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        turn_id = signals.turn_id
        advantage = advantage_B[:, None].expand(mask.shape)
        if self.turn_weight > 0:
            group_B = signals.get("group_B")
            # A sum over at most one column: there may be none.
            first_B = turn_values(signals.get("turn_reward"), turn_id)[:, :1].sum(-1)
            both_B = first_B + signals.get("reward_B")
            turn_B, both_B = (group_relative(x, group_B, epsilon=self.epsilon) for x in (first_B, both_B))
            followed = (turn_id == 1).any(-1, keepdim=True)
            own = torch.where(turn_id == 0, self.turn_weight * turn_B[:, None], 0.0)
            advantage = torch.where(followed, advantage + own, both_B[:, None])
        return Credit(advantage=torch.where(mask, advantage, 0.0), segment_id=turn_id)
