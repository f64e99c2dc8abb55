"""Credit that sees which token was drawn: does finding every mistake train better? Not in the package."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.tensor.masked import masked_max, masked_mean, masked_rank
from gear_rl.tensor.trust import prefix_trust
from gear_rl.types import Credit, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Slips:
    """In failures, blame where the teacher is more surprised by the token than it expects; praise is GEAR's.

    The excess is max(0, -log q(y) - H_q) in nats, discounted behind a mistake as GEAR's ``aftermath`` does and
    scaled to 1 at the largest of a completion. KL(p || q) does not see the draw.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 2, dtype=torch.bool), student_logprob=torch.tensor([[-0.1, -3.0]]),
    ...     teacher_logprob=torch.tensor([[-0.1, -4.5]]), teacher_entropy=torch.tensor([[0.1, 0.5]]),
    ...     divergence=torch.tensor([[0.0, 0.1]]),
    ... )
    >>> Slips()(torch.tensor([-1.0]), signals).advantage.round(decimals=2)
    tensor([[-0.1100, -1.8900]])
    """

    name: ClassVar[str] = "slips"
    source: ClassVar[str] = "ours"

    alpha: float = 16.0
    """Weight added at a completion's largest excess."""
    aftermath: float = 0.9
    of: Gear = Gear(onset_rule="never", alpha=16.0)
    """The credit of successes."""
    by: Literal["teacher", "student"] = "teacher"
    """Whose excess surprisal; the student's is the control without a teacher in failures."""

    @property
    def needs(self) -> tuple[Any, ...]:
        own = "student_logprob", "teacher_logprob", f"{self.by}_entropy"
        return tuple(dict.fromkeys((*self.of.needs, *own)))

    @property
    def engine_settings(self) -> Any:
        """GEAR's."""
        return self.of.engine_settings

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask, log_ratio = signals.mask, signals.get("teacher_logprob") - signals.get("student_logprob")
        excess = (-signals.get(f"{self.by}_logprob") - signals.get(f"{self.by}_entropy")).clamp(0, 8)
        if self.by == "teacher":
            excess = excess * prefix_trust(log_ratio, mask, self.aftermath)
        excess = torch.where(mask, excess, 0.0)
        largest = masked_max(excess, mask)
        height = torch.where(largest > 0.01, excess / largest.clamp(min=0.01), 0.0)
        weight = 1 + self.alpha * height
        weight = weight / masked_mean(weight, mask).clamp(min=1)
        blame = Credit.from_weights(advantage_B, weight, masked_rank(mask))
        praise = self.of(advantage_B, signals).advantage
        advantage = torch.where((advantage_B < 0)[:, None], blame.advantage, praise)
        return Credit(advantage=advantage, segment_id=blame.segment_id)
