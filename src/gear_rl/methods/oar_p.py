"""OAR-P: a token counts as much as the answer changes when it is struck out."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.signals.saliency import AnswerOcclusion, Readout
from gear_rl.tensor.bilevel import QuantileRule, check_bilevel, weights_before_answer
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, Signal, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class OarP:
    """Tokens that the student's own answer depends on are credited more, the others less.

    Outcome-Grounded Advantage Reshaping (arXiv:2601.07408), by perturbation: ``s_t`` is how far the answer's
    distribution moves when token ``t`` is replaced by padding (``answer_occlusion``). Over the tokens before the
    answer, ``n = minmax(log(1 + s))`` and ``q`` its ``threshold``-quantile; then ``w = max(n / q, min_weight)``
    below ``q``, ``w = 1 + boost (n - q) / (1 - q)`` from it on, and all are scaled to mean 1
    (``tensor.bilevel.bilevel_weights``). ``A_t = A w_t`` for both signs; the answer, its delimiters and what
    follows have weight 1. Every token is a segment of its own. No teacher is needed, and no ground truth.

    A completion without an answer has weight 1. ``strength=0`` gives GRPO bit for bit and needs no signal;
    between, the weight is ``(1 - strength) + strength * w``. Raises ``ValueError`` for a setting outside its
    range.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 5, dtype=torch.bool),
    ...     answer_region=torch.tensor([[0, 0, 0, 2, 1]]),
    ...     answer_occlusion=torch.tensor([[0.0, 1.0, 3.0, 0.0, 0.0]]),  # n = 0, 1/2, 1 and q = 1/4
    ... )
    >>> OarP()(torch.tensor([2.0]), signals).advantage  # w = 0.1, 4/3, 2, times 3 / 3.4333
    tensor([[0.1748, 2.3301, 3.4951, 2.0000, 2.0000]])
    """

    name: ClassVar[str] = "oar_p"
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
    """What of the answer a struck token moves: ``mean`` (softmax of its mean logits), ``last`` (the last logits
    before it) or ``joint`` (its log-likelihood)."""

    def __post_init__(self) -> None:
        AnswerOcclusion(self.readout)
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
        return (AnswerOcclusion(self.readout), "answer_region") if self.strength > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            weight = weights_before_answer(
                signals.get("answer_occlusion"),
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
