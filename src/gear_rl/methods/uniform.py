"""GRPO: every token of a completion carries the completion's advantage."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import settings_class
from gear_rl.types import Credit, TokenSignals


@settings_class
class Uniform:
    """Every token of a completion gets the completion's advantage.

    GRPO (arXiv:2402.03300): ``A_t = A``, one segment per completion. A setting that "gives GRPO" gives
    exactly these advantages.

    >>> signals = TokenSignals(mask=torch.tensor([[True, True, False]]))
    >>> Uniform()(torch.tensor([2.0]), signals).advantage
    tensor([[2., 2., 0.]])
    """

    name: ClassVar[str] = "uniform"
    source: ClassVar[str] = "arXiv:2402.03300"
    even: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        segment_id = torch.where(signals.mask, 0, -1)
        weight = torch.ones_like(signals.mask, dtype=advantage_B.dtype)
        return Credit.from_weights(advantage_B, weight, segment_id)
