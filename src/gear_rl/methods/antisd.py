"""AntiSD: away from what the privileged teacher prefers, while its entropy holds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from gear_rl.settings import Count, NotNegative, Share, settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.traits import MeanOf
from gear_rl.types import Credit, TokenSignals


@settings_class
class AntiSd:
    """Tokens that the privileged teacher likes get less advantage: it prefers shortcuts to deliberation.

    Anti-self-distillation (AntiSD, arXiv:2605.11609, from a summary and third-party code):
    ``A_t = A - strength (softplus(u) - log 2) / 2``, with ``u = log q - log p``, teacher over student, of the
    sampled token. **Additive**. A gate turns it off when the batch's mean teacher entropy falls below
    ``close_below`` of the mean of the first ``warmup_steps`` batches, and on again once it is back at that mean.

    We have not seen the paper's strength; 1 is ours, and so is acting during the warm-up.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 3, dtype=torch.bool),
    ...     student_logprob=torch.tensor([[-1.0, -3.0, -1.0]]),
    ...     teacher_logprob=torch.tensor([[-1.0, -1.0, -3.0]]),
    ...     teacher_entropy=torch.zeros(1, 3),
    ... )
    >>> AntiSd()(torch.tensor([1.0]), signals).advantage
    tensor([[1.0000, 0.2831, 1.2831]])
    >>> AntiSd(warmup_steps=2).after([1.0, 3.0, 1.8]).strength  # below .93 of the mean, 2
    0.0
    """

    name: ClassVar[str] = "antisd"
    source: ClassVar[str] = "arXiv:2605.11609"
    additive: ClassVar[bool] = True

    strength: NotNegative = 1.0
    """The paper's lambda; 0 gives GRPO."""
    close_below: Share = 0.93
    """Share of the warm-up's entropy below which the gate closes; 0 for no gate."""
    warmup_steps: Count = 20
    """Batches over which that entropy is averaged."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_logprob", "teacher_logprob", "teacher_entropy") if self.strength > 0 else ()

    def with_state(self, state: dict[str, Any], mean_of: MeanOf) -> "AntiSd":
        """The method for a batch; ``state`` has the mean teacher entropy of each batch so far."""
        mean, means = mean_of("teacher_entropy") if self.strength > 0 else None, state.setdefault("gate", [])
        if mean is None:
            return self
        means.append(mean)
        return self.after(means)

    def after(self, means: Sequence[float]) -> "AntiSd":
        """The method for a batch, from the mean teacher entropy of each batch so far, its own last."""
        level = math.fsum(means[: self.warmup_steps]) / len(means[: self.warmup_steps])
        closed = False
        for mean in means[self.warmup_steps :]:
            closed = mean < (level if closed else self.close_below * level)
        return replace(self, strength=0.0) if closed else self

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        advantage = advantage_B[:, None].expand(signals.mask.shape)
        if self.strength > 0:
            log_ratio = signals.get("teacher_logprob") - signals.get("student_logprob")
            advantage = advantage - self.strength * (softplus(log_ratio) - math.log(2.0)) / 2.0
        return Credit(
            advantage=torch.where(signals.mask, advantage, 0.0), segment_id=masked_rank(signals.mask)
        )
