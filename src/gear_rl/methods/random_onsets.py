"""The placebo of the segmentation: as many segments, in random places."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.tensor.permute import moved, random_order
from gear_rl.types import Credit, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOnsets:
    """Placebo: GEAR with its onsets moved to random tokens.

    Every onset takes its divergence along, and the other tokens close ranks, so a completion keeps its number of
    onsets and its stock of divergences; the end rule (student entropy) works as in GEAR from the new places. A
    method that does not beat this has learned nothing from *where* its segments begin.

    >>> import torch
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     divergence=torch.tensor([[0.0, 2.0, 0.0, 0.0]]),
    ...     student_entropy=torch.tensor([[0.1, 0.1, 1.0, 0.1]]),
    ...     student_logprob=torch.tensor([[0.0, -1.0, 0.0, 0.0]]),
    ...     teacher_logprob=torch.tensor([[0.0, -0.5, 0.0, 0.0]]),
    ... )
    >>> RandomOnsets(seed=3)(torch.tensor([1.0]), signals).segment_id
    tensor([[0, 0, 1, 2]])
    """

    name: ClassVar[str] = "random_onsets"
    source: ClassVar[str] = "placebo (ours)"

    of: Gear = Gear()
    """The GEAR whose onsets are moved."""
    seed: int = 0
    """Which places; the completion's own divergences are hashed in, so that steps differ."""

    @property
    def needs(self) -> tuple[str, ...]:
        return self.of.needs

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        height, onset = self.of.onsets(advantage_B, signals)
        order = random_order(signals.get(self.of.needs[0]), signals.mask, self.seed)
        height, onset = moved(height, onset, order, signals.mask)
        return self.of.spread(advantage_B, signals, height, onset)
