"""CAST: a teacher without the answer, groups of equal rewards, signs that flip."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import AroundOne, NotNegative, Positive, Share, settings_class
from gear_rl.tensor.groups import group_relative
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, TokenSignals


@settings_class
class Cast:
    """A teacher that does not see the answer scales the advantage, flips it, and credits groups of equal rewards.

    CAST (arXiv:2606.00172, from a reader's note): ``A_t = B (1 + strength (w - 1))``. ``B`` is the advantage; in
    a group of equal rewards it is 1 if they are successes, else -1. ``w = exp(sign(B) g)``, with
    ``g = log q - log p``, teacher over student, of the sampled token, is kept within ``good_range`` or
    ``bad_range``. Where the teacher disagrees with ``B`` by more than ``flip_nats``, ``A_t = -flip_size B``. All
    are kept within ``largest``. **Additive**.

    Where and how far a sign flips is our reading. The teacher is the first policy, or ``teacher_model``.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 3, dtype=torch.bool),
    ...     student_logprob=torch.tensor([[-1.0, -1.0, -1.0]]),
    ...     teacher_logprob=torch.tensor([[-0.1, -1.1, -5.0]]),
    ...     group_B=torch.tensor([0]), reward_B=torch.tensor([1.0]), success_B=torch.tensor([1.0]),
    ... )
    >>> Cast()(torch.tensor([0.0]), signals).advantage  # a group that succeeded
    tensor([[ 1.0500,  0.9048, -0.2000]])
    """

    name: ClassVar[str] = "cast"
    source: ClassVar[str] = "arXiv:2606.00172"
    additive: ClassVar[bool] = True
    engine_settings: ClassVar[Mapping[str, Any]] = {
        "teacher_model_kind": "base",
        "privileged_sources": ["prompt"],
    }

    strength: Share = 1.0
    """Share of the advantage that is scaled, the paper's lambda; 0 gives GRPO."""
    good_range: AroundOne = (0.8, 1.05)
    """Least and largest ``w`` where ``B`` is positive."""
    bad_range: AroundOne = (0.95, 1.2)
    """The same where ``B`` is negative."""
    equal_groups: bool = True
    """Credit groups of equal rewards."""
    flip_nats: NotNegative | None = 1.0
    """Disagreement beyond which a sign flips; None for never."""
    flip_size: NotNegative = 0.2
    """Size of a flipped advantage, as a share of ``B``."""
    largest: Positive = 1.2
    """Largest absolute advantage."""

    @property
    def needs(self) -> tuple[str, ...]:
        if self.strength == 0:
            return ()
        return ("student_logprob", "teacher_logprob", "group_B", "reward_B", "success_B")

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        advantage = advantage_B[:, None].expand(signals.mask.shape)
        if self.strength > 0:
            base = self._base(advantage_B, signals)[:, None]
            agreement = base.sign() * (signals.get("teacher_logprob") - signals.get("student_logprob"))
            ratio = agreement.clamp(-20.0, 20.0).exp()  # may not overflow before it is kept in range
            ratio = torch.where(base > 0, ratio.clamp(*self.good_range), ratio.clamp(*self.bad_range))
            advantage = base * (1.0 + self.strength * (ratio - 1.0))
            if self.flip_nats is not None:
                advantage = torch.where(agreement < -self.flip_nats, -self.flip_size * base, advantage)
            advantage = advantage.clamp(-self.largest, self.largest)
        return Credit(
            advantage=torch.where(signals.mask, advantage, 0.0), segment_id=masked_rank(signals.mask)
        )

    def _base(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Float[Tensor, " B"]:
        if not self.equal_groups:
            return advantage_B
        group_B = signals.get("group_B")
        distance_B = group_relative(signals.get("reward_B").double(), group_B).abs()
        mean_B = distance_B - group_relative(distance_B, group_B)
        # A trainer's advantage of equal rewards is 0 but for rounding; where siblings fell back it is not.
        equal_B = (mean_B == 0) & (advantage_B.abs() < 0.01)
        verdict_B = torch.where(signals.get("success_B") > 0, 1.0, -1.0).to(advantage_B.dtype)
        return torch.where(equal_B, verdict_B, advantage_B)
