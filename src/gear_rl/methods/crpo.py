"""CRPO: task and style rewards are normalised in the group separately, then mixed."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from gear_rl.settings import Positive, Share, Whole, settings_class
from gear_rl.tensor.groups import group_relative
from gear_rl.types import Credit, TokenSignals

Places = Annotated[tuple[Whole, ...], Field(strict=False)]


@settings_class
class Crpo:
    """Task rewards and style rewards are normalised in the group separately, and their advantages mixed.

    Character-centred policy optimisation (CRPO, arXiv:2605.25511):
    ``A_t = s norm(sum of task rewards) + (1 - s) norm(sum of style rewards)``, with ``s = task_share`` and
    ``norm(r) = (r - mean) / (std + epsilon)`` over the group. One segment per completion. **Additive**: it
    replaces the engine's advantage.

    Not implemented: generic answers as negative baselines, a KL coefficient and running statistics per role, the
    entropy factor.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(2, 1, dtype=torch.bool),
    ...     group_B=torch.tensor([0, 0]),
    ...     rewards_BR=torch.tensor([[1.0, 0.0], [0.0, 90.0]]),  # right, and in character
    ... )
    >>> Crpo(task_share=0.75)(torch.tensor([-0.7, 0.7]), signals).advantage  # 0.7071 (0.75 - 0.25)
    tensor([[ 0.3535],
            [-0.3535]])
    """

    name: ClassVar[str] = "crpo"
    source: ClassVar[str] = "arXiv:2605.25511"
    even: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    task: Annotated[Places, Field(min_length=1)] = (0,)
    """Indices of the reward functions that judge the task, from 0."""
    style: Places = (1,)
    """Indices of those that judge the style; none gives GRPO."""
    task_share: Share = 0.5
    """Share of the task's advantage; the rest is the style's."""
    epsilon: Positive = 1e-4
    """Added to the group's deviation; equal sums of rewards may differ in their last bits."""

    def __post_init__(self) -> None:
        if len({*self.task, *self.style}) < len(self.task) + len(self.style):
            raise ValueError(f"style: a reward function is listed twice in {(*self.task, *self.style)}")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("group_B", "rewards_BR") if self.style else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        if self.style:
            group_B, rewards_BR = signals.get("group_B"), signals.get("rewards_BR")
            count = rewards_BR.shape[1]
            for field in ("task", "style"):
                last: int = max(getattr(self, field))
                if last >= count:
                    raise ValueError(
                        f"{field}: no reward function {last}; the run has {count}, counted from 0. Give crpo "
                        "the places of its reward functions"
                    )
            task_B, style_B = (
                group_relative(rewards_BR[:, list(places)].sum(-1), group_B, epsilon=self.epsilon)
                for places in (self.task, self.style)
            )
            advantage_B = self.task_share * task_B + (1.0 - self.task_share) * style_B
        advantage = torch.where(mask, advantage_B[:, None], 0.0)
        return Credit(advantage=advantage, segment_id=torch.where(mask, 0, -1))
