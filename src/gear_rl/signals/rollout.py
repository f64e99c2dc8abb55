"""What a rollout has without any pass: its tokens, its group, its rewards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gear_rl.signals.batch import RolloutBatch
from gear_rl.signals.engine import Engine
from gear_rl.signals.signal import BatchSignal


@dataclass(frozen=True)
class TokenId(BatchSignal):
    """The sampled token's number in the vocabulary; -1 where the mask is False. The same on every processor, so
    placebos draw their places from it."""

    name = "token_id"
    late = True

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return torch.where(batch.completions.mask, batch.completions.ids.long(), -1)


@dataclass(frozen=True)
class GroupB(BatchSignal):
    """Which prompt's group the completion belongs to; for methods that compare siblings. A completion that falls
    back, or that nobody judged where rewards are read, has no siblings: its number is no prompt's."""

    name = "group_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return torch.tensor(batch.group, device=batch.completions.mask.device)


@dataclass(frozen=True)
class RewardB(BatchSignal):
    """The completion's reward, as the trainer weighs and sums it; 0 where nobody judged."""

    name = "reward_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return torch.tensor([reward or 0.0 for reward in batch.rewards], device=batch.advantage_B.device)


@dataclass(frozen=True)
class RewardsBR(BatchSignal):
    """What each reward function gave, times its weight; 0 where it abstained."""

    name = "rewards_BR"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return batch.rewards_BR


@dataclass(frozen=True)
class Succeeded(BatchSignal):
    """Whether the completion's reward is at least ``success_reward``."""

    name = "succeeded_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return RewardB().compute(batch, engine) >= batch.success_reward


@dataclass(frozen=True)
class JudgedGroup(BatchSignal):
    """The group of the completion; a number of its own where nobody judged it, so that it is alone."""

    name = "judged_group_B"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        group_B = GroupB().compute(batch, engine)
        own_B = torch.arange(len(group_B), device=group_B.device)
        return torch.where(batch.judged(), group_B, -1 - own_B)
