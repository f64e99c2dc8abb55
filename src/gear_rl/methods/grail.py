"""GRAIL: in failures the tokens that drove the wrong answer are blamed most."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.settings import NotNegative, Share, settings_class
from gear_rl.tensor.masked import masked_mean, masked_rank
from gear_rl.types import Credit, TokenSignals

Symmetry = Literal["wrong", "correct", "both"]


@settings_class
class Grail:
    """Gradient times activation of the student's own answer scales the advantage of failures.

    GRAIL (arXiv:2606.04889): ``z`` is the z-score of ``log(s + 1e-8)``, ``s`` the ``answer_activation``, and
    ``w = clip(mean + std z, min_weight, max_weight)`` where ``A <= 0``, else 1. Then the answer's content gets
    ``max_weight``, its delimiters and all after it ``mean``. ``A_t = A (1 + strength (w - 1))``.

    As in the release, the answer is overridden in successes too, and the z-score includes tokens that cannot
    move the answer.

    >>> e = 2.718281828
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     answer_region=torch.tensor([[0, 0, 2, 1]]),
    ...     answer_activation=torch.tensor([[e**3, e, e, e**3]]),  # z = 1, -1, -1, 1
    ... )
    >>> Grail()(torch.tensor([-1.0]), signals).advantage
    tensor([[-1.5000, -0.5000, -1.0000, -5.0000]])
    >>> Grail()(torch.tensor([1.0]), signals).advantage
    tensor([[1., 1., 1., 5.]])
    """

    name: ClassVar[str] = "grail"
    source: ClassVar[str] = "arXiv:2606.04889"

    strength: Share = 1.0
    """Share of the advantage that is reweighted (ours); 0 gives GRPO."""
    symmetry: Symmetry = "wrong"
    """Completions that are reweighted: ``wrong``, A <= 0; ``correct``, A > 0; ``both``."""
    mean: NotNegative = 1.0
    """Weight of a token of average saliency, of the delimiters and of what follows."""
    std: NotNegative = 0.5
    """Weight added per standard deviation of log-saliency."""
    min_weight: NotNegative = 0.5
    """Least weight."""
    max_weight: NotNegative = 5.0
    """Largest weight, and that of the answer's content."""

    def __post_init__(self) -> None:
        if not self.min_weight <= self.mean <= self.max_weight:
            raise ValueError(
                f"mean: {self.mean} must lie between min_weight, {self.min_weight}, and max_weight, "
                f"{self.max_weight}"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        # The saliency first: a shuffle is drawn from it, and regions are much alike.
        return ("answer_activation", "answer_region") if self.strength > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            region = torch.where(mask, signals.get("answer_region"), -1)
            answered = (region == 1).any(-1, keepdim=True)
            reweighted = answered & self._meant(advantage_B)[:, None]
            raw = self.mean + self.std * _z_score(signals.get("answer_activation"), mask)
            weight = torch.where(reweighted, raw.clamp(self.min_weight, self.max_weight), weight)
            weight = torch.where(region == 1, self.max_weight, weight)
            weight = torch.where(answered & (region == 2), self.mean, weight)
            weight = 1.0 + self.strength * (weight - 1.0)
        return Credit.from_weights(advantage_B, weight, masked_rank(mask))

    def _meant(self, advantage_B: Float[Tensor, " B"]) -> Bool[Tensor, " B"]:
        if self.symmetry == "both":
            return torch.ones_like(advantage_B, dtype=torch.bool)
        return advantage_B > 0 if self.symmetry == "correct" else advantage_B <= 0


def _z_score(saliency: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Log-saliency of every token by mean and deviation of the completion's."""
    # In float32 the mean of equal values may miss them by 2e-6, which a deviation of 1e-4 makes 2% of a weight.
    level = (saliency.double() + 1e-8).log()
    offset = level - masked_mean(level, mask)
    return (offset / (masked_mean(offset.square(), mask) + 1e-8).sqrt()).to(saliency.dtype)
