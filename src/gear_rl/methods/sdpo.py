"""SDPO: the student imitates itself, shown a success of its group or feedback."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gear_rl.methods.opsd import SelfDistilling
from gear_rl.settings import Count, Positive, Share, settings_class
from gear_rl.traits import Distillation, TopKOf, check_sampled


@settings_class
class Sdpo(SelfDistilling):
    """Every token is pulled towards what the policy writes once it saw a success of its group, or feedback.

    Self-distillation policy optimisation (SDPO, arXiv:2601.20802): each token adds ``strength r_t D_t`` to the
    loss, and ``A_t = (1 - strength) A``. ``D_t`` is OPSD's divergence over the student's ``top_k`` likeliest
    tokens, with all others as one outcome; ``r_t = min(exp(log pi - log pi_old), ratio_clip)``. One segment per
    completion.

    The paper has the reverse KL over the vocabulary (``beta=1, top_k=None``), the code these defaults and, where
    it has no logits, ``sampled``: OPSD's, **additive**.

    >>> import torch
    >>> from gear_rl.types import TokenSignals
    >>> signals = TokenSignals(mask=torch.tensor([[True, True, False]]))
    >>> credit = Sdpo()(torch.tensor([2.0]), signals)
    >>> credit.advantage, credit.distill_weight
    (tensor([[0., 0., 0.]]), tensor([[1., 1., 0.]]))
    >>> Sdpo().distillation.top_k
    100
    """

    name: ClassVar[str] = "sdpo"
    source: ClassVar[str] = "arXiv:2601.20802"
    engine_settings: ClassVar[Mapping[str, Any]] = {
        "teacher_model_kind": "ema",
        "teacher_update_rate": 0.05,
        "privileged_sources": ["sibling", "feedback"],
        "success_reward": 0.5,
    }

    strength: Share = 1.0
    """Coefficient of the divergence; the advantage keeps the rest. 0 gives GRPO."""
    beta: Share = 0.5
    """0: forward KL, 1: reverse KL, between: generalised Jensen-Shannon divergence."""
    top_k: Count | None = 100
    """Number of likeliest tokens compared; None for all."""
    top_k_of: TopKOf = "student"
    """Whose likeliest tokens: the ``student``'s (released) or the ``teacher``'s."""
    tail: bool = True
    """Count all other tokens as one more outcome; if False, normalise the ``top_k`` to 1."""
    ratio_clip: Positive | None = 2.0
    """Largest importance ratio; None for no ratio."""
    sampled: bool = False
    """The sampled token's log-ratio becomes the advantage; for ``beta=1`` without ``top_k`` and
    ``ratio_clip``."""

    def __post_init__(self) -> None:
        check_sampled(self, beta=1.0, top_k=None, ratio_clip=None)

    @property
    def even(self) -> bool:
        return not self.additive

    @property
    def _term(self) -> Distillation:
        return Distillation(
            beta=self.beta,
            top_k=self.top_k,
            top_k_of=self.top_k_of,
            tail=self.tail,
            ratio_clip=self.ratio_clip,
        )
