"""Three methods that no document and no test names: one reweights, one adds, one distils."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.methods import Uniform
from gear_rl.traits import Distillation
from gear_rl.types import Credit, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHalves:
    """The second half of a completion takes more than the first; a synced teacher."""

    name: ClassVar[str] = "newcomer_halves"
    source: ClassVar[str] = "a test"
    needs: ClassVar[tuple[str, ...]] = ("student_entropy",)
    engine_settings: ClassVar[dict[str, Any]] = {"teacher_model_kind": "sync"}

    share: float = 0.75
    """Of the second half."""

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        """Two segments a completion, one where it has a single token."""
        signals.get("student_entropy")
        length = signals.mask.sum(-1, keepdim=True)
        second = (2 * signals.mask.cumsum(-1) > length) & (length > 1)
        weight = torch.where(second, 2 * self.share, 2 - 2 * self.share) * signals.mask
        return Credit.from_weights(advantage_B, weight, torch.where(signals.mask, second.long(), -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAdded:
    """Adds the student's entropy to the advantage; a token's advantage may have another sign."""

    name: ClassVar[str] = "newcomer_added"
    source: ClassVar[str] = "a test"
    needs: ClassVar[tuple[str, ...]] = ("student_entropy",)
    additive: ClassVar[bool] = True

    strength: float = 0.1
    """Of the entropy; 0 for GRPO."""

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        """GRPO's segments."""
        plain = Uniform()(advantage_B, signals)
        if self.strength == 0:
            return plain
        more = torch.where(signals.mask, self.strength * signals.get("student_entropy"), 0.0)
        return Credit(advantage=plain.advantage + more, segment_id=plain.segment_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTaught:
    """Half of the advantage, and a term of distillation."""

    name: ClassVar[str] = "newcomer_taught"
    source: ClassVar[str] = "a test"
    needs: ClassVar[tuple[str, ...]] = ()

    strength: float = 0.5
    """Of the term, and what the advantage loses; 0 for GRPO."""

    @property
    def distillation(self) -> Distillation | None:
        """The term, if there is one."""
        return Distillation() if self.strength > 0 else None

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        """GRPO's segments."""
        plain = Uniform()(advantage_B, signals)
        if self.strength == 0:
            return plain
        return Credit(
            advantage=plain.advantage * (1 - self.strength),
            segment_id=plain.segment_id,
            distill_weight=self.strength * signals.mask,
        )


NEWCOMERS = (NewHalves, NewAdded, NewTaught)
