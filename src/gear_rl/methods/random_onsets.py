"""The placebo of the segmentation: the same onsets in random places."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.settings import settings_class
from gear_rl.tensor.permute import move_values, random_order
from gear_rl.types import Credit, TokenSignals


@settings_class
class RandomOnsets:
    """Placebo: GEAR with its onsets moved to random tokens.

    Ours. Each onset keeps its divergence, the other tokens keep their order, and the end rule applies from the
    new places: a GEAR that does not beat this learned nothing from *where* its segments begin. The places depend
    only on the sampled tokens, the seed and the step.

    >>> import torch
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     token_id=torch.tensor([[11, 12, 13, 14]]),
    ...     divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0]]),
    ...     student_entropy=torch.tensor([[0.1, 0.1, 1.0, 0.1]]),
    ... )
    >>> RandomOnsets(of=Gear(departures="all", aftermath=0.0), seed=7)(torch.tensor([1.0]), signals).segment_id
    tensor([[0, 0, 1, 2]])
    """

    name: ClassVar[str] = "random_onsets"
    source: ClassVar[str] = "placebo (ours)"

    of: Gear = Gear()
    """The GEAR whose onsets are moved."""
    seed: int = 0
    """Seed of the places."""
    step: int = 0
    """Optimizer step, which changes the places; the engine sets it."""

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.of.needs, "token_id")

    @property
    def engine_settings(self) -> Mapping[str, Any]:
        """GEAR's."""
        return self.of.engine_settings

    @property
    def makes_segments(self) -> bool:
        """As GEAR does."""
        return self.of.makes_segments

    def at_step(self, step: int) -> "RandomOnsets":
        """The places of optimizer step ``step``."""
        return replace(self, step=step)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        height, onset = self.of.onsets(advantage_B, signals)
        order = random_order(signals.get("token_id"), signals.mask, self.seed, self.step)
        height, onset = move_values(height, onset, order, signals.mask)
        return self.of.spread(advantage_B, signals, height, onset)
