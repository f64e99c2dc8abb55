"""OAR-G: a token counts as much as the answer's change under noise leans on its embedding."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.signals.saliency import AnswerGradient, Readout
from gear_rl.tensor.bilevel import QuantileRule, check_bilevel, weights_before_answer
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, Signal, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class OarG:
    """Tokens to which the student's own answer is most sensitive are credited more, the others less.

    Outcome-Grounded Advantage Reshaping (arXiv:2601.07408), by gradient: ``s_t = |<gradient of J, e_t>|``,
    where ``J`` is how far the answer's distribution moves under a little noise on the embeddings before it, and
    ``e_t`` the token's own clean embedding (``answer_gradient``): two forwards and a backward instead of
    ``oar_p``'s forward for every token. From there on it is ``oar_p``.

    A completion without an answer has weight 1. ``strength=0`` gives GRPO bit for bit and needs no signal;
    between, the weight is ``(1 - strength) + strength * w``. Raises ``ValueError`` for a setting outside its
    range.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool),
    ...     answer_region=torch.tensor([[0, 0, 0, 2, 1]]),
    ...     answer_gradient=torch.tensor([[0.0, 1.0, 3.0, 0.0, 0.0]]),  # n = 0, 1/2, 1 and q = 1/4
    ... )
    >>> OarG(keep_mass=False)(torch.tensor([3.0]), signals).advantage  # w = 0.1, 4/3, 2
    tensor([[0.3000, 4.0000, 6.0000, 3.0000, 3.0000]])
    """

    name: ClassVar[str] = "oar_g"
    source: ClassVar[str] = "arXiv:2601.07408"

    strength: float = 1.0
    """Share of the advantage that is reshaped; 0 gives GRPO back."""
    threshold: float = 0.25
    """Quantile that parts the held tokens from the lifted, the paper's tau."""
    boost: float = 1.0
    """How much above 1 the most salient token weighs before the scaling, the paper's beta."""
    quantile_rule: QuantileRule = "linear"
    """``linear`` between neighbours (the snippet), or ``floor``: the token of that rank (GRAIL's code)."""
    min_weight: float = 0.1
    """Least weight of a held token before the scaling."""
    keep_mass: bool = True
    """Scale the weights of the tokens before the answer to mean 1; if not, they stay as they are."""

    readout: Readout = "mean"
    """What of the answer the noise moves: ``mean`` (softmax of its mean logits), ``last`` (the last logits before
    it) or ``joint`` (its log-likelihood)."""
    noise_std: float = 1e-3
    """Standard deviation of the noise on the embeddings before the answer."""

    def __post_init__(self) -> None:
        AnswerGradient(self.readout, self.noise_std)
        if self.noise_std == 0:
            raise ValueError("noise_std: 0.0; give more than 0: without noise all is 0")
        if not 0.0 <= self.strength <= 1.0:
            raise ValueError(f"strength: {self.strength} is not a share; give 0 to 1")
        check_bilevel(
            threshold=self.threshold,
            quantile_rule=self.quantile_rule,
            boost=self.boost,
            min_weight=self.min_weight,
        )

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        # The saliency first: a shuffle is drawn from it, and regions are much alike.
        return (AnswerGradient(self.readout, self.noise_std), "answer_region") if self.strength > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            weight = weights_before_answer(
                signals.get("answer_gradient"),
                signals.get("answer_region"),
                mask,
                strength=self.strength,
                threshold=self.threshold,
                quantile_rule=self.quantile_rule,
                boost=self.boost,
                min_weight=self.min_weight,
                keep_mass=self.keep_mass,
            )
        return Credit.from_weights(advantage_B, weight, masked_rank(mask))
