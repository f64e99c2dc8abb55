"""RLSD: the teacher's likelihood ratio scales the advantage of each token."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from gear_rl.settings import Count, Share, Whole, settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, TokenSignals


@settings_class
class Rlsd:
    """The clipped likelihood ratio of teacher to student scales the advantage of each token.

    Self-Distilled RLVR (arXiv:2604.03128): ``A_t = A ((1 - strength) + strength clip(w))``, with ``w =
    exp(sign(A) (teacher_logprob - student_logprob))``. The sign never flips; the mean weight is not 1.

    The paper's strength falls over 50 steps, the released script's over 60. The script reads the current
    policy, we read that of the rollout. CEPO (arXiv:2605.19436) is ``Rlsd(clip_width=0.5, decay_steps=25)``
    with ``teacher_contrast: sibling``.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 3, dtype=torch.bool),
    ...     student_logprob=torch.tensor([[-1.0, -1.0, -1.0]]),
    ...     teacher_logprob=torch.tensor([[-0.1, -1.0, -3.0]]),
    ... )
    >>> Rlsd()(torch.tensor([2.0]), signals).advantage
    tensor([[2.2000, 2.0000, 1.8000]])
    >>> Rlsd().at_step(25).strength
    0.25
    """

    name: ClassVar[str] = "rlsd"
    source: ClassVar[str] = "arXiv:2604.03128"
    engine_settings: ClassVar[Mapping[str, Any]] = {"teacher_model_kind": "sync", "teacher_sync_steps": 10}

    strength: Share = 0.5
    """Share of the advantage that is scaled, the paper's lambda; 0 gives GRPO."""
    clip_width: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The ratio is kept between 1 - clip_width and 1 + clip_width."""
    negative_only: bool = False
    """Weight 1 unless the advantage is negative."""
    decay_steps: Count | None = 50
    """Optimizer steps over which the strength falls linearly to 0; None for no decay."""
    warmup_steps: Whole = 0
    """Optimizer steps over which the strength first rises linearly from 0."""

    @property
    def needs(self) -> tuple[str, ...]:
        # Once the schedule has run out this is GRPO, and a teacher pass would be paid for nothing.
        return ("student_logprob", "teacher_logprob") if self.strength > 0 else ()

    def at_step(self, step: int) -> "Rlsd":
        """The method with the strength of optimizer step ``step``, counted from 0, and no schedule left.

        ``strength * step / warmup_steps`` during the warm-up, then
        ``strength * max(0, 1 - (step - warmup_steps) / decay_steps)``.

        >>> [Rlsd(warmup_steps=2, decay_steps=4).at_step(step).strength for step in (0, 1, 2, 4, 9)]
        [0.0, 0.25, 0.5, 0.25, 0.0]
        """
        share = 1.0
        if step < self.warmup_steps:
            share = step / self.warmup_steps
        elif self.decay_steps is not None:
            share = max(0.0, 1.0 - (step - self.warmup_steps) / self.decay_steps)
        return replace(self, strength=self.strength * share, decay_steps=None, warmup_steps=0)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        weight = torch.ones_like(signals.mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            log_ratio = signals.get("teacher_logprob") - signals.get("student_logprob")
            ratio = (advantage_B.sign()[:, None] * log_ratio).exp()
            # (1 - strength) + strength * clip, in the form that is exactly 1 where the clipped ratio is.
            weight = 1.0 + self.strength * (ratio.clamp(1.0 - self.clip_width, 1.0 + self.clip_width) - 1.0)
        if self.negative_only:
            weight = torch.where(advantage_B[:, None] < 0, weight, 1.0)
        return Credit.from_weights(advantage_B, weight, masked_rank(signals.mask))
