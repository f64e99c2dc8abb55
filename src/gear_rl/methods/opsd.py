"""OPSD: the student imitates a teacher that saw the solution, on its own completions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.settings import Count, Positive, Share, settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.traits import Distillation, check_sampled
from gear_rl.types import Credit, TokenSignals


class SelfDistilling(ABC):
    """What OPSD and SDPO have in common: a term of the loss, or with ``sampled`` an advantage in its place."""

    __slots__ = ()
    strength: float
    sampled: bool

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_logprob", "teacher_logprob") if self.additive else ()

    @property
    def additive(self) -> bool:
        return self.sampled and self.strength > 0

    @property
    def distillation(self) -> Distillation | None:
        """The term of the loss; None where ``sampled``, and at ``strength=0``."""
        return self._term if self.strength > 0 and not self.sampled else None

    @property
    @abstractmethod
    def _term(self) -> Distillation: ...

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        if not self.additive:
            return Credit.distilling(advantage_B, mask, self.strength)
        log_ratio = signals.get("teacher_logprob") - signals.get("student_logprob")
        advantage = (1.0 - self.strength) * advantage_B[:, None] + self.strength * log_ratio
        return Credit(advantage=torch.where(mask, advantage, 0.0), segment_id=masked_rank(mask))


@settings_class
class Opsd(SelfDistilling):
    """Every token is pulled towards what the teacher, who saw the solution, would have written there.

    On-policy self-distillation (OPSD, arXiv:2601.18734): each token adds ``strength D_t`` to the loss, and
    ``A_t = (1 - strength) A``. ``D_t = beta KL(q || m) + (1 - beta) KL(p || m)``, with student ``p``, teacher
    ``q`` and ``m = beta q + (1 - beta) p``. One segment per completion.

    ``sampled``, a released option, is **additive** and puts nothing in the loss:
    ``A_t = (1 - strength) A + strength (log q - log p)`` of the sampled token, whose expectation is -KL(p || q).

    The scripts sample at 1.1; here ``temperature`` divides the logits beside the engine's temperature, so leave
    that at 1.

    >>> signals = TokenSignals(mask=torch.tensor([[True, True, False]]))
    >>> credit = Opsd(strength=0.75)(torch.tensor([2.0]), signals)
    >>> credit.advantage, credit.distill_weight
    (tensor([[0.5000, 0.5000, 0.0000]]), tensor([[0.7500, 0.7500, 0.0000]]))
    >>> Opsd().distillation.beta
    0.5
    """

    name: ClassVar[str] = "opsd"
    source: ClassVar[str] = "arXiv:2601.18734"
    engine_settings: ClassVar[Mapping[str, Any]] = {"teacher_model_kind": "base"}

    strength: Share = 1.0
    """Coefficient of the divergence; the advantage keeps the rest. 0 gives GRPO."""
    beta: Share = 0.5
    """0: forward KL, 1: reverse KL, between: generalised Jensen-Shannon divergence."""
    temperature: Positive = 1.1
    """Divides the logits of student and teacher, beside the sampling temperature."""
    top_k: Count | None = None
    """Compare only the teacher's likeliest tokens, normalised to 1; None for all. The released option is 50."""
    sampled: bool = False
    """The sampled token's log-ratio becomes the advantage; for ``beta=1, temperature=1`` without ``top_k``."""

    def __post_init__(self) -> None:
        check_sampled(self, beta=1.0, temperature=1.0, top_k=None)

    @property
    def even(self) -> bool:
        return not self.additive

    @property
    def _term(self) -> Distillation:
        return Distillation(
            beta=self.beta, top_k=self.top_k, top_k_of="teacher", tail=False, temperature=self.temperature
        )
