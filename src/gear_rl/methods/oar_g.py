"""OAR-G: a token counts as much as the answer's change under noise leans on its embedding."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.tensor.bilevel import QuantileRule, check_bilevel, weights_before_answer
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class OarG:
    """Tokens to which the student's own answer is most sensitive are credited more, the others less.

    Outcome-Grounded Advantage Reshaping (arXiv:2601.07408), by gradient: ``s_t = |<gradient of J, e_t>|``,
    where ``J`` is how far the answer's distribution moves under a little noise on the embeddings before it, and
    ``e_t`` the token's own clean embedding (``answer_gradient``): two forwards and a backward instead of
    ``oar_p``'s forward for every token. From there on it is ``oar_p``: over the tokens before the answer,
    ``n = minmax(log(1 + s))`` and ``q`` its ``threshold``-quantile; ``w = max(n / q, min_weight)`` below ``q``,
    ``1 + boost (n - q) / (1 - q)`` from it on, all scaled to mean 1 (``tensor.bilevel.bilevel_weights``);
    ``A_t = A w_t`` for both signs; weight 1 elsewhere. Every token is a segment of its own. No teacher is
    needed, and no ground truth.

    What the authors' texts and the codes do not agree on is a setting here or of the signal, as in ``oar_p``:

    * the two levels: the authors' readme has ``threshold=0.25, boost=1`` (ours), GRAIL's code ``threshold=0.4,
      boost=2, quantile_rule="floor"``, CRPO's 0.7 and 1;
    * the scaling to mean 1 is a flag of the snippet (``sum_to_L``): ``keep_mass``;
    * whose gradient: the snippet's is of the token's own embedding with noise on the reasoning only (ours).
      GRAIL's code puts noise on the whole completion, multiplies by the noisy embedding of the position that
      *predicts* the token, and reshapes the answer too: not here;
    * what the answer is, and how much noise (0.001): ``signals.saliency``'s ``readout`` and ``noise_std``.

    The embeddings of a trained model are small, and so is ``s``: where all of it is far below 1, log(1 + s) is
    ``s`` and does not compress. The stretch to 0..1 makes the weights independent of its unit.

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

    def __post_init__(self) -> None:
        if not 0.0 <= self.strength <= 1.0:
            raise ValueError(f"strength: {self.strength} is not a share; give 0 to 1")
        check_bilevel(
            threshold=self.threshold,
            quantile_rule=self.quantile_rule,
            boost=self.boost,
            min_weight=self.min_weight,
        )

    @property
    def needs(self) -> tuple[str, ...]:
        # The saliency first: a shuffle is drawn from it, and regions are much alike.
        return ("answer_gradient", "answer_region") if self.strength > 0 else ()

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
