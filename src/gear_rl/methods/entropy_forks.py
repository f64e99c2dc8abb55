"""80/20: only the tokens at which the student was most uncertain are credited."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.settings import PositiveShare, settings_class
from gear_rl.tensor.masked import masked_mean, masked_quantile, masked_rank
from gear_rl.types import Credit, TokenSignals

Scope = Literal["completion", "batch"]
Selection = Literal["quantile", "count"]
Renormalise = Literal["none", "mean"]


@settings_class
class EntropyForks:
    """The tokens with the highest student entropy keep the advantage; the others get none.

    Beyond the 80/20 Rule (arXiv:2506.01939): ``A_t = A`` where ``H_t >= q``, else 0, with ``q`` the ``1 -
    top_share`` quantile of the entropies.

    Paper, code and TRL differ in ``scope``, ``selection`` and ``renormalise``. They read the entropy of the
    current policy, we read that of the rollout. Leave TRL's ``top_entropy_quantile`` at 1, or tokens are
    dropped twice.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 6, dtype=torch.bool),
    ...     student_entropy=torch.tensor([[0.1, 2.0, 0.3, 0.0, 1.5, 0.2]]),
    ... )
    >>> EntropyForks()(torch.tensor([2.0]), signals).advantage
    tensor([[0., 2., 0., 0., 2., 0.]])
    """

    name: ClassVar[str] = "entropy_forks"
    source: ClassVar[str] = "arXiv:2506.01939"

    top_share: PositiveShare = 0.2
    """Share of the tokens that gets credit, above 0; 1 gives GRPO."""
    scope: Scope = "batch"
    """Pool of tokens: the ``batch`` where the advantage is not 0 (paper, TRL) or the ``completion`` (ours)."""
    selection: Selection = "quantile"
    """``quantile``: tokens at or above it, with ties (paper, TRL); ``count``: ceil(N top_share) tokens (the
    paper's code)."""
    renormalise: Renormalise = "none"
    """``none``: a kept token has weight 1 (TRL); ``mean``: mean weight 1 over the ``scope`` (the paper's
    code)."""

    @property
    def whole_batch(self) -> bool:
        """Whether tokens of other groups count."""
        return self.scope == "batch" and self.top_share < 1

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_entropy",) if self.top_share < 1 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.top_share < 1:
            pool, entropy = mask, signals.get("student_entropy")
            if self.scope == "batch":
                pool = (mask & (advantage_B != 0)[:, None]).flatten()[None]
                entropy = entropy.flatten()[None]
            weight = self._kept(entropy, pool).to(advantage_B.dtype)
            if self.renormalise == "mean":
                mean = masked_mean(weight, pool)
                weight = weight / torch.where(mean > 0, mean, 1.0)  # an empty pool has mean 0
            weight = weight.view(mask.shape)
        return Credit.from_weights(advantage_B, weight, masked_rank(mask))

    def _kept(self, entropy: Float[Tensor, "R N"], pool: Bool[Tensor, "R N"]) -> Bool[Tensor, "R N"]:
        # The result outside the pool does not matter: such tokens are masked or have no advantage.
        if self.selection == "quantile":
            return entropy >= masked_quantile(entropy, pool, 1.0 - self.top_share)
        # As the paper's code rounds up: 35 * 0.2 is a little more than 7 and must not become 8.
        number = (pool.sum(-1, keepdim=True).double() * self.top_share + 0.9999).long().clamp(min=1)
        order = torch.where(pool, entropy, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
        return order.argsort(-1) < number  # the inverse permutation: each token's place
