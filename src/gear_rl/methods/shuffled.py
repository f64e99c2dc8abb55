"""The placebo: the same credit in random places."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.settings import settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.tensor.permute import permute_values, random_order
from gear_rl.traits import (
    Distillation,
    MeanOf,
    at_step,
    distillation_of,
    engine_settings_of,
    is_additive,
    is_whole_batch,
    with_state,
)
from gear_rl.types import Credit, CreditAssigner, Signal, TokenSignals


@settings_class
class Shuffled:
    """Placebo: another method's credit, permuted inside each completion.

    Ours. The amounts of credit stay, their places are random: a method that does not beat its own shuffle learned
    nothing from *where* it put the credit. The permutation depends only on the sampled tokens, the seed and the
    step.

    >>> import torch
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     token_id=torch.tensor([[11, 12, 13, 14]]),
    ...     divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0]]),
    ...     student_entropy=torch.tensor([[0.1, 0.1, 1.0, 0.1]]),
    ... )
    >>> Shuffled(of=Gear(departures="all", aftermath=0.0))(torch.tensor([1.0]), signals).advantage
    tensor([[0.5000, 0.5000, 2.5000, 0.5000]])
    """

    name: ClassVar[str] = "shuffled"
    source: ClassVar[str] = "placebo (ours)"

    of: CreditAssigner = Gear()
    """The method whose credit is shuffled."""
    seed: int = 0
    """Seed of the permutations."""
    step: int = 0
    """Optimizer step, which changes the permutation; the engine sets it."""

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        return tuple(dict.fromkeys((*self.of.needs, "token_id")))

    @property
    def whole_batch(self) -> bool:
        """As the method that is shuffled."""
        return is_whole_batch(self.of)

    @property
    def additive(self) -> bool:
        """As the method that is shuffled."""
        return is_additive(self.of)

    @property
    def distillation(self) -> Distillation | None:
        """That of the method that is shuffled."""
        return distillation_of(self.of)

    @property
    def engine_settings(self) -> Mapping[str, Any]:
        """Those of the method that is shuffled."""
        return engine_settings_of(self.of)

    def with_state(self, state: dict[str, Any], mean_of: MeanOf) -> "Shuffled":
        """The permutations of the method for a batch."""
        return replace(self, of=with_state(self.of, state, mean_of))

    def at_step(self, step: int) -> "Shuffled":
        """The permutations of optimizer step ``step``, of the method as it is then."""
        return replace(self, of=at_step(self.of, step), step=step)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        credit, mask = self.of(advantage_B, signals), signals.mask
        order = random_order(signals.get("token_id"), mask, self.seed, self.step)
        distill = credit.distill_weight
        return Credit(
            advantage=permute_values(credit.advantage, order, mask),
            segment_id=masked_rank(mask),
            distill_weight=None if distill is None else permute_values(distill, order, mask),
        )
