"""Distilled RL: likelihood ratios of teacher to student weight the tokens of good completions."""

import math
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from gear_rl.settings import settings_class
from gear_rl.tensor.masked import masked_mean, masked_rank
from gear_rl.types import Credit, TokenSignals


@settings_class
class DistilledRl:
    """In good completions each token is weighted by its ratio of teacher to student.

    Distilled RL (arXiv:2607.17247): ``A_t = A w_t``, with ``w_t = r_t / exp(mean_s log r_s)`` where ``A >
    0``, else 1. ``r_t = clip(q(y_t) / p(y_t), 1 / c, c)``, for student ``p`` and teacher ``q``.

    Their teacher is a stronger model that reads the plain prompt; an engine's is the policy with the
    privileged context.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 3, dtype=torch.bool),
    ...     student_logprob=torch.log(torch.tensor([[0.2, 0.2, 0.2]])),
    ...     teacher_logprob=torch.log(torch.tensor([[0.4, 0.2, 0.1]])),  # ratios 2, 1 and 1/2, geometric mean 1
    ... )
    >>> DistilledRl()(torch.tensor([3.0]), signals).advantage
    tensor([[6.0000, 3.0000, 1.5000]])
    """

    name: ClassVar[str] = "distilled_rl"
    source: ClassVar[str] = "arXiv:2607.17247"

    clip_ratio: Annotated[float, Field(ge=1)] = 3.0
    """The ratio is kept between 1 / clip_ratio and clip_ratio; 1 gives GRPO."""
    positive_only: bool = True
    """Weight 1 unless the advantage is positive."""
    normalise: bool = True
    """Divide by the geometric mean of the completion's clipped ratios."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_logprob", "teacher_logprob") if self.clip_ratio > 1 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        weight = torch.ones_like(signals.mask, dtype=advantage_B.dtype)
        if self.clip_ratio > 1:
            most = math.log(self.clip_ratio)
            # In logarithms nothing overflows, and the geometric mean is a difference.
            log_ratio = (signals.get("teacher_logprob") - signals.get("student_logprob")).clamp(-most, most)
            if self.normalise:
                log_ratio = log_ratio - masked_mean(log_ratio, signals.mask)
            weight = log_ratio.exp()
        if self.positive_only:
            weight = torch.where(advantage_B[:, None] > 0, weight, 1.0)
        return Credit.from_weights(advantage_B, weight, masked_rank(signals.mask))
