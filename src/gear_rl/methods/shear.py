"""SHEAR: a token counts as much as its hidden states differ from rollouts with the other outcome."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import Count, Share, settings_class
from gear_rl.signals.transport import TransportDistance
from gear_rl.tensor.masked import masked_mean, masked_rank
from gear_rl.types import Credit, Signal, TokenSignals

Normalise = Literal["none", "mean"]


@settings_class
class Shear:
    """The distance of hidden states to completions with the other outcome scales the advantage.

    Hidden States Know Where Reasoning Diverges (SHEAR, arXiv:2604.23318): ``A_t = A ((1 - strength) +
    strength d_t)``, with ``d_t`` the Wasserstein distance from the windows around the token to the nearest
    window of a completion of the same prompt with the other outcome.

    The mean weight is not 1, which changes the step size; with ``normalise`` it is, an ablation in that
    paper. A completion without such a counterpart keeps its advantage.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     transport_distance=torch.tensor([[0.2, 0.2, 0.6, 0.6]]),
    ... )
    >>> Shear()(torch.tensor([2.0]), signals).advantage
    tensor([[0.4000, 0.4000, 1.2000, 1.2000]])
    >>> Shear(normalise="mean")(torch.tensor([2.0]), signals).advantage
    tensor([[1., 1., 3., 3.]])
    """

    name: ClassVar[str] = "shear"
    source: ClassVar[str] = "arXiv:2604.23318"

    strength: Share = 1.0
    """Share of the advantage that the distance scales; 0 gives GRPO."""
    normalise: Normalise = "none"
    """``none``: the distance itself (paper); ``mean``: over its mean in the completion."""

    window_tokens: Count = 100
    """Tokens per window."""
    stride_tokens: Count = 25
    """Tokens from the start of one window to the next."""

    def __post_init__(self) -> None:
        TransportDistance(self.window_tokens, self.stride_tokens)

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        if self.strength == 0:
            return ()
        return (TransportDistance(self.window_tokens, self.stride_tokens),)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            distance = signals.get("transport_distance")
            mean = masked_mean(distance, mask)
            # Not `mean > 0`: a distance that is not finite stays visible, and the engine falls back.
            compared = mean != 0
            if self.normalise == "mean":
                distance = distance / mean  # what 0 / 0 leaves is replaced below
            distance = torch.where(compared, distance, 1.0)
            weight = ((1.0 - self.strength) + self.strength * distance).to(advantage_B.dtype)
        return Credit.from_weights(advantage_B, weight, masked_rank(mask))
