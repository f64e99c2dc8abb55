"""RLCSD: a bounded bonus for what a right hint, and not a wrong one, makes likelier."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from gear_rl.settings import NotNegative, Positive, settings_class
from gear_rl.tensor.masked import masked_rank
from gear_rl.types import Credit, TokenSignals

Paths = Literal["completion", "batch", "one"]


@settings_class
class Rlcsd:
    """Tokens likelier under a right hint than under a wrong one get a bounded bonus, unlikelier ones a malus.

    Contrastive self-distillation (RLCSD, arXiv:2606.11709): two teachers see a right and a wrong hint,
    ``e_t = log T+ - log T-`` and ``r_t = strength tanh(e_t / squash_nats)``. Where ``|r_t| > threshold`` the
    token is *modulated*: it gets ``A + r_t``, or 0 if the sign would flip.

    The release averages up to 4 wrong hints; we take one. Its loss adds a mean per kind of token; ``paths``
    multiplies credit accordingly, which makes a larger step.

    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 4, dtype=torch.bool),
    ...     student_logprob=torch.tensor([[-1.0, -1.0, -1.0, -1.0]]),
    ...     teacher_logprob=torch.tensor([[-0.2, -1.0, -3.0, -1.0]]),  # contrasted: log p + log T+ - log T-
    ... )
    >>> Rlcsd(paths="one")(torch.tensor([2.0]), signals).advantage
    tensor([[2.5000, 2.0000, 1.5000, 2.0000]])
    >>> Rlcsd()(torch.tensor([2.0]), signals).advantage
    tensor([[5., 4., 3., 4.]])
    """

    name: ClassVar[str] = "rlcsd"
    source: ClassVar[str] = "arXiv:2606.11709"
    engine_settings: ClassVar[Mapping[str, Any]] = {
        "teacher_model_kind": "sync",
        "teacher_sync_steps": 10,
        "teacher_contrast": "sibling",
        "privileged_sources": ["sibling"],
    }

    strength: Annotated[float, Field(ge=0, le=2)] = 0.5
    """Largest bonus, in units of advantage; 0 gives GRPO."""
    squash_nats: Positive = 0.02
    """Contrast at which the bonus is tanh(1) = 0.76 of the largest."""
    threshold: NotNegative = 0.02
    """Bonuses up to this size are dropped."""
    modulated_share: NotNegative = 1.0
    """Weight of the modulated tokens' mean, the paper's eta; unused by ``one``."""
    paths: Paths = "batch"
    """Modulated and other tokens have a mean each over the ``batch`` (paper; where the advantage is not 0) or the
    ``completion`` (ours), or share ``one``."""

    @property
    def whole_batch(self) -> bool:
        """Whether tokens of other groups count."""
        return self.paths == "batch" and self.strength > 0

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_logprob", "teacher_logprob") if self.strength > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        advantage = advantage_B[:, None].expand(mask.shape)
        if self.strength > 0:
            contrast = signals.get("teacher_logprob") - signals.get("student_logprob")
            bonus = self.strength * (contrast / self.squash_nats).tanh()
            modulated = mask & (bonus.abs() > self.threshold)
            sign = advantage.sign()
            # Times the sign, so that one clamp at 0 serves both; where the sign is 0 nothing is left.
            changed = sign * (sign * (advantage + bonus)).clamp(min=0.0)
            advantage = torch.where(modulated, changed, advantage)
            if self.paths != "one":
                counted = (
                    mask & (advantage_B != 0)[:, None]
                )  # an engine computes no signal where the advantage is 0
                dims = -1 if self.paths == "completion" else (0, 1)
                kinds = counted, counted & modulated, counted & ~modulated
                both, most, rest = (x.sum(dims, keepdim=True) for x in kinds)
                factor = torch.where(
                    modulated,
                    self.modulated_share * both / most.clamp(min=1),
                    both / rest.clamp(min=1),
                )
                advantage = advantage * factor.to(advantage.dtype)
        return Credit(advantage=torch.where(mask, advantage, 0.0), segment_id=masked_rank(mask))
