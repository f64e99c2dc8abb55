"""OAR: a token counts as much as the student's own answer depends on it, by two measures."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import NotNegative, Positive, Share, settings_class
from gear_rl.signals.saliency import AnswerGradient, AnswerOcclusion
from gear_rl.tensor.bilevel import bilevel_weights
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, Signal, TokenSignals


@settings_class
class _Oar:
    """``A_t = A (1 + strength (w - 1))``, ``w`` the bi-level weight of the saliency before the answer, else 1."""

    name: ClassVar[str]
    source: ClassVar[str] = "arXiv:2601.07408"

    strength: Share = 1.0
    """Share of the advantage that is reshaped; 0 gives GRPO."""
    threshold: Share = 0.25
    """Quantile between lowered and raised tokens, the paper's tau."""
    boost: NotNegative = 1.0
    """How far the most salient token is raised before the scaling, the paper's beta."""
    min_weight: Share = 0.1
    """Least weight of a lowered token before the scaling."""

    @property
    @abstractmethod
    def _saliency(self) -> Signal: ...

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        # The saliency first: a shuffle is drawn from it, and regions are much alike.
        return (self._saliency, "answer_region") if self.strength > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            saliency, region = signals.get(self._saliency.name), signals.get("answer_region")
            answered = (mask & (region == 1)).any(-1, keepdim=True)
            before = mask & (region == 0) & answered
            reshaped = bilevel_weights(
                saliency, before, threshold=self.threshold, boost=self.boost, min_weight=self.min_weight
            )
            weight = torch.where(before, 1.0 + self.strength * (reshaped - 1.0), 1.0)
        return Credit.from_weights(advantage_B, weight, masked_rank(mask))


@settings_class
class OarP(_Oar):
    """Tokens that the student's own answer depends on get more credit, the others less.

    Outcome-Grounded Advantage Reshaping (OAR, arXiv:2601.07408), by perturbation: the saliency ``s_t`` is how far
    the answer's distribution moves when token t is replaced by padding. Over the tokens before the answer,
    ``n = minmax(log(1 + s))`` and ``q`` is its ``threshold``-quantile. The weight is ``max(n / q, min_weight)``
    below ``q`` and ``1 + boost (n - q) / (1 - q)`` from ``q`` on, scaled to mean 1. All other tokens have weight
    1.

    Costs a forward pass per token.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool),
    ...     answer_region=torch.tensor([[0, 0, 0, 2, 1]]),
    ...     answer_occlusion=torch.tensor([[0.0, 1.0, 3.0, 0.0, 0.0]]),  # n = 0, 1/2, 1 and q = 1/4
    ... )
    >>> OarP()(torch.tensor([2.0]), signals).advantage
    tensor([[0.1748, 2.3301, 3.4951, 2.0000, 2.0000]])
    """

    name: ClassVar[str] = "oar_p"

    @property
    def _saliency(self) -> Signal:
        return AnswerOcclusion()


@settings_class
class OarG(_Oar):
    """Tokens to which the student's own answer is most sensitive get more credit, the others less.

    OAR (arXiv:2601.07408) by gradient, with the weights of ``oar_p``: ``s_t = |<gradient of J, e_t>|``, where
    ``J`` is how far the answer's distribution moves under a little noise on the embeddings before it, and ``e_t``
    the token's own embedding without noise.

    Costs two forward passes and a backward pass.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool),
    ...     answer_region=torch.tensor([[0, 0, 0, 2, 1]]),
    ...     answer_gradient=torch.tensor([[0.0, 1.0, 3.0, 0.0, 0.0]]),  # n = 0, 1/2, 1 and q = 1/4
    ... )
    >>> OarG()(torch.tensor([2.0]), signals).advantage
    tensor([[0.1748, 2.3301, 3.4951, 2.0000, 2.0000]])
    """

    name: ClassVar[str] = "oar_g"

    noise_std: Positive = 1e-3
    """Standard deviation of the noise on the embeddings."""

    @property
    def _saliency(self) -> Signal:
        return AnswerGradient(self.noise_std)
