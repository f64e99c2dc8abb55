"""SDPG: GRPO plus a pull towards the privileged teacher and an anchor to the first policy."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import NotNegative, Positive, Share, Whole, settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.traits import Anchor, Distillation, check_sampled
from gear_rl.types import Credit, TokenSignals


@settings_class
class Sdpg:
    """GRPO's advantage stays; the loss adds a pull to the privileged teacher and an anchor to the first policy.

    Self-distilled policy gradient (SDPG, arXiv:2606.04036): each token adds
    ``weight D_t + anchor_weight f(log pi - log pi_ref)`` to the loss. ``D_t`` is KL(p || q), at most
    ``max_nats``; ``f(r)`` is the ``anchor``: ``urkl`` r^2 / 2, ``ufkl`` exp(-r) + r, ``rkl`` (r + 1)^2 / 2,
    ``fkl`` exp(-r). One segment per completion.

    The paper distils where ``A > 0`` (``positive_only``) and schedules the weight (``warmup_steps``); the
    released runs do neither. ``weight=0`` with ``anchor="none"`` gives GRPO.

    >>> signals = TokenSignals(mask=torch.tensor([[True, False], [True, True]]))
    >>> credit = Sdpg(positive_only=True, weight=0.5, anchor="none")(torch.tensor([2.0, -1.0]), signals)
    >>> credit.distill_weight
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    >>> method = Sdpg(weight=1.0, warmup_steps=2, decay_steps=4, total_steps=8)
    >>> [method.at_step(k).weight for k in (0, 1, 4, 7, 9)]
    [0.0, 0.5, 1.0, 0.25, 0.0]
    """

    name: ClassVar[str] = "sdpg"
    source: ClassVar[str] = "arXiv:2606.04036"

    weight: NotNegative = 1e-3
    """Coefficient of the divergence, the paper's beta(k) before its schedule."""
    beta: Share = 1.0
    """1: reverse KL, SDPG's own, 0: forward KL, between: generalised Jensen-Shannon divergence."""
    max_nats: Positive | None = 20.0
    """Largest divergence of a token; None for no limit."""
    positive_only: bool = False
    """Distil only where the advantage is above 0, as in the paper."""
    warmup_steps: Whole = 0
    """Optimizer steps over which the weight rises linearly from 0."""
    decay_steps: Whole = 0
    """Last optimizer steps of ``total_steps``, over which the weight falls linearly to 0."""
    total_steps: int | None = None
    """Optimizer steps of the training, for the decay."""
    anchor: Anchor = "urkl"
    """Penalty that holds the policy to its first weights: ``urkl``, ``ufkl``, ``rkl``, ``fkl`` or ``none``."""
    anchor_weight: NotNegative = 1e-3
    """Coefficient of the anchor, the paper's alpha."""
    sampled: bool = False
    """Add ``weight (log q - log p)`` of the sampled token, within ``max_nats``, to the advantage in place of
    ``D_t``; for ``beta=1``. **Additive**; the anchor stays in the loss."""

    def __post_init__(self) -> None:
        check_sampled(self, beta=1.0)
        if self.decay_steps and (self.total_steps is None or self.total_steps < 1):
            raise ValueError(
                f"total_steps: {self.total_steps}, but the weight decays over the last {self.decay_steps} steps; "
                "give the number of optimizer steps of the training"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        taught = ("student_logprob", "teacher_logprob") if self.additive else ()
        return (*taught, "reference_logprob") if self._anchored else taught

    @property
    def additive(self) -> bool:
        return self.sampled and self.weight > 0

    @property
    def even(self) -> bool:
        return not self.additive

    @property
    def distillation(self) -> Distillation | None:
        """The term of the loss; None where neither the weight nor the anchor leaves anything of it."""
        return self._term if self._anchored or (self.weight > 0 and not self.sampled) else None

    @property
    def _anchored(self) -> bool:
        return self.anchor != "none" and self.anchor_weight > 0

    @property
    def _term(self) -> Distillation:
        return Distillation(
            beta=self.beta, max_nats=self.max_nats, anchor=self.anchor, anchor_weight=self.anchor_weight
        )

    def at_step(self, step: int) -> "Sdpg":
        """The method with the weight of optimizer step ``step``, counted from 0, and no schedule left."""
        share = min(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0
        if self.decay_steps and self.total_steps is not None:
            share *= min(1.0, max(0, self.total_steps - step) / self.decay_steps)
        return replace(self, weight=self.weight * share, warmup_steps=0, decay_steps=0)

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        if self._anchored:
            # The loss reads it; needed here so that it cannot be forgotten.
            _ = signals.get("reference_logprob")
        chosen = mask & (advantage_B > 0)[:, None] if self.positive_only else mask
        weight = torch.where(chosen, self.weight, 0.0)
        advantage, segment_id = advantage_B[:, None], torch.where(mask, 0, -1)
        if self.additive:
            log_ratio = signals.get("teacher_logprob") - signals.get("student_logprob")
            limit = math.inf if self.max_nats is None else self.max_nats
            advantage = advantage + weight * log_ratio.clamp(-limit, limit)
            weight, segment_id = torch.zeros_like(weight), masked_rank(mask)
        return Credit(
            advantage=torch.where(mask, advantage, 0.0),
            segment_id=segment_id,
            distill_weight=None if self.distillation is None else weight,
        )
