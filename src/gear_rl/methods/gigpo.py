"""GiGPO: turns of a group that began in the same state are compared."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import NotNegative, Positive, PositiveShare, Share, settings_class
from gear_rl.signals.turns import AnchorId
from gear_rl.tensor.groups import (
    group_numbers,
    group_relative,
    has_turn,
    last_turn,
    on_turns,
    returns_to_go,
    turn_values,
)
from gear_rl.types import Credit, Signal, TokenSignals

Normaliser = Literal["mean", "mean_std"]


@settings_class
class Gigpo:
    """A turn is compared with turns that began in the same state, and the result added to the advantage.

    Group-in-group policy optimisation (GiGPO, arXiv:2505.10978): ``A_k = A + turn_weight (R_k - mean) / F`` over
    the group's turns with the same ``anchor_id``; a turn without another keeps ``A``.
    ``R_k = sum_{l >= k} discount^(l - k) r_l``, with the completion's reward on its last turn. The turn is the
    segment. **Additive**.

    Released scripts differ in ``F`` (``normaliser``) and apply it to ``A`` too; here ``A`` is the engine's.

    >>> signals = TokenSignals(
    ...     mask=torch.tensor([[True, False, True], [True, False, True]]),
    ...     group_B=torch.tensor([0, 0]),
    ...     reward_B=torch.tensor([1.0, 0.0]),
    ...     anchor_id=torch.tensor([[0, -1, 1], [0, -1, 2]]),  # both began alike, then went apart
    ... )
    >>> Gigpo()(torch.tensor([0.5, -0.5]), signals).advantage  # 0.95 and 0 at the first turns
    tensor([[ 0.9750,  0.0000,  0.5000],
            [-0.9750,  0.0000, -0.5000]])
    """

    name: ClassVar[str] = "gigpo"
    source: ClassVar[str] = "arXiv:2505.10978"
    additive: ClassVar[bool] = True

    turn_weight: NotNegative = 1.0
    """Weight of the comparison, the paper's omega; 0 gives GRPO."""
    discount: Share = 0.95
    """Per turn, the paper's gamma."""
    normaliser: Normaliser = "mean"
    """``mean``: F is 1; ``mean_std``: F is the sample deviation plus ``epsilon``."""
    epsilon: Positive = 1e-6
    """Added to the deviation; unused by ``mean``."""
    turn_rewards: bool = False
    """Add the environment's turn rewards to the return."""

    anchor_similarity: PositiveShare = 1.0
    """Likeness, 0 to 1, from which two texts are one state; 1 for equal texts (released option 0.95)."""

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        if self.turn_weight == 0:
            return ()
        anchor = AnchorId(self.anchor_similarity)
        return ("group_B", "reward_B", anchor, *(("turn_reward",) if self.turn_rewards else ()))

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        turn_id = signals.turn_id
        advantage = advantage_B[:, None].expand(mask.shape)
        if self.turn_weight > 0:
            has = has_turn(turn_id)
            reward = torch.where(last_turn(has), signals.get("reward_B")[:, None], 0.0)
            if self.turn_rewards:
                reward = reward + turn_values(signals.get("turn_reward"), turn_id)
            anchor = turn_values(signals.get("anchor_id"), turn_id)
            group = signals.get("group_B")[:, None].expand(anchor.shape)
            turn = group_relative(
                returns_to_go(reward, self.discount),
                group_numbers(group, anchor),
                has,
                epsilon=self.epsilon if self.normaliser == "mean_std" else None,
            )
            advantage = advantage + self.turn_weight * on_turns(turn, turn_id)
        return Credit(advantage=torch.where(mask, advantage, 0.0), segment_id=turn_id)
