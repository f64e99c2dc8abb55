"""The placebo: the same credit, in random places."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.tensor.masked import masked_rank
from gear_rl.tensor.permute import permuted, random_order
from gear_rl.types import (
    ROW_SIGNALS,
    Credit,
    CreditAssigner,
    Distillation,
    Scheduled,
    TokenSignals,
    distillation_of,
    is_additive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Placebo: another method's credit, permuted inside each completion.

    Keeps their sum and their spread, destroys their place. A method that does not beat its own shuffle has
    learned nothing from *where* it put the credit. Every token is a segment of its own. A completion with
    fewer than two tokens is left as it is. A method with a schedule keeps it.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0]]),
    ...     student_entropy=torch.tensor([[0.1, 0.1, 1.0, 0.1]]),
    ...     student_logprob=torch.tensor([[0.0, -1.0, 0.0, 0.0]]),
    ...     teacher_logprob=torch.tensor([[0.0, -0.5, 0.0, 0.0]]),
    ... )
    >>> Shuffled()(torch.tensor([1.0]), signals).advantage
    tensor([[0.8000, 0.8000, 0.8000, 1.6000]])
    """

    name: ClassVar[str] = "shuffled"
    source: ClassVar[str] = "placebo (ours)"

    of: CreditAssigner = Gear()
    """The method whose credit is shuffled."""
    seed: int = 0
    """Which permutation; the signal that the method reads first is hashed in, so that steps differ."""

    @property
    def needs(self) -> tuple[str, ...]:
        return self.of.needs

    @property
    def additive(self) -> bool:
        """As the method that is shuffled."""
        return is_additive(self.of)

    @property
    def distillation(self) -> Distillation | None:
        """That of the method that is shuffled."""
        return distillation_of(self.of)

    def at_step(self, step: int) -> "Shuffled":
        """The shuffle of the method as it is at optimizer step ``step``; itself where that has no schedule."""
        return replace(self, of=self.of.at_step(step)) if isinstance(self.of, Scheduled) else self

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        credit, mask = self.of(advantage_B, signals), signals.mask
        read = next((name for name in self.of.needs if name not in ROW_SIGNALS), None)
        key = torch.zeros_like(credit.advantage) if read is None else signals.get(read).float()
        order = random_order(key, mask, self.seed)
        distill = credit.distill_weight
        return Credit(
            advantage=permuted(credit.advantage, order, mask),
            segment_id=masked_rank(mask),
            distill_weight=None if distill is None else permuted(distill, order, mask),
        )
