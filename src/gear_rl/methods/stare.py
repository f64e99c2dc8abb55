"""STARE: surprising tokens of good completions weigh more, while the policy is certain."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import Positive, Share, settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, TokenSignals


@settings_class
class Stare:
    """The most surprising tokens of good completions weigh more, so that a certain policy keeps its entropy.

    STARE (arXiv:2606.19236, released code): of the batch's tokens with ``A > 0``, the ``share`` with the largest
    surprisal ``-log p`` gets ``weight``; the same share of the tokens with ``A < 0`` gets ``bad_weight``; all
    others get 1. Nothing changes while the mean entropy of completions with an advantage is ``entropy_nats`` or
    more; the release takes that of all.

    The release takes 1.05 from 14B parameters on. Weights are not scaled to mean 1.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     student_logprob=torch.tensor([[-0.1, -2.0, -0.3, -0.2]]),
    ...     student_entropy=torch.full((1, 4), 0.2),
    ... )
    >>> Stare(share=0.25)(torch.tensor([1.0]), signals).advantage
    tensor([[1.0000, 1.1000, 1.0000, 1.0000]])
    """

    name: ClassVar[str] = "stare"
    source: ClassVar[str] = "arXiv:2606.19236"
    whole_batch: ClassVar[bool] = True

    share: Share = 0.1
    """Share of the tokens that is reweighted, at least one."""
    weight: Positive = 1.1
    """Of surprising tokens where the advantage is positive; 1 with ``bad_weight`` 1 gives GRPO."""
    bad_weight: Positive = 1.0
    """Of surprising tokens where the advantage is negative."""
    entropy_nats: Positive = 0.3
    """Mean entropy of the batch at or above which every weight is 1."""

    @property
    def needs(self) -> tuple[str, ...]:
        changes = self.share > 0 and (self.weight, self.bad_weight) != (1.0, 1.0)
        return ("student_logprob", "student_entropy") if changes else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        weight = torch.ones_like(mask, dtype=advantage_B.dtype)
        if self.needs:
            counted = mask & (advantage_B != 0)[:, None]  # of others an engine computes no signal
            entropy = torch.where(counted, signals.get("student_entropy"), 0.0)
            certain = entropy.sum() < self.entropy_nats * counted.sum()
            for sign, changed in ((1.0, self.weight), (-1.0, self.bad_weight)):
                among = mask & (sign * advantage_B > 0)[:, None] & certain
                surprising = among & (-signals.get("student_logprob") >= self._threshold(signals, among))
                weight = torch.where(surprising, changed, weight)
        return Credit.from_weights(advantage_B, weight, masked_rank(mask))

    def _threshold(self, signals: TokenSignals, among: Tensor) -> Tensor:
        """The surprisal of the last token that still belongs to the share."""
        surprisal = torch.where(among, -signals.get("student_logprob"), -torch.inf).flatten()
        if not len(surprisal):
            return surprisal.new_zeros(())
        # Without the tolerance 50 tokens times 0.3 would be 16.
        count = (among.sum().double() * self.share - 1e-9).ceil().clamp(min=1).long()
        return surprisal.sort(descending=True).values[count - 1]
