"""The placebo: the same credit, in random places."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.tensor.masked import masked_rank
from gear_rl.tensor.permute import permuted
from gear_rl.types import Credit, CreditAssigner, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Placebo: another method's credit, permuted inside each completion.

    Keeps their sum and their spread, destroys their place. A method that does not beat its own shuffle has
    learned nothing from *where* it put the credit. Every token is a segment of its own. A completion with
    fewer than two tokens is left as it is.

    >>> import torch
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0]]),
    ...     student_entropy=torch.tensor([[0.1, 0.1, 1.0, 0.1]]),
    ... )
    >>> Shuffled()(torch.tensor([1.0]), signals).advantage
    tensor([[0.8000, 0.8000, 1.6000, 0.8000]])
    """

    name: ClassVar[str] = "shuffled"
    source: ClassVar[str] = "placebo (ours)"

    of: CreditAssigner = Gear()
    """The method whose credit is shuffled."""
    seed: int = 0
    """Which permutation; the completion's own credit is hashed in, so that steps differ."""

    @property
    def needs(self) -> tuple[str, ...]:
        return self.of.needs

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        advantage = permuted(self.of(advantage_B, signals).advantage, signals.mask, self.seed)
        return Credit(advantage=advantage, segment_id=masked_rank(signals.mask))
