"""What the credit step knows of a batch before it has signals, and its result. Computes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.teacher_prompts import TeacherPrompts
from gear_rl.engine import ForwardRequest
from gear_rl.rollouts import Prompts, RolloutBatch
from gear_rl.traits import distillation_of
from gear_rl.types import Credit, CreditAssigner, Signal, TokenSignals

FALLBACKS = ("no_context", "long_context", "non_finite", "no_token")
"""Why a completion keeps its GRPO advantage: it has no privileged context, one that is too long, a NaN or Inf in
a signal, or no trained token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditPlan:
    """The completions to credit and what has to be computed for it, before any signal is."""

    method: CreditAssigner
    """As it is at the batch's step."""
    signals: Sequence[Signal]
    """Those that the method needs."""
    batch: RolloutBatch
    teacher: TeacherPrompts
    scored_B: Bool[Tensor, " B"]
    """True on the completions whose signals will be read."""
    fallback_B: Mapping[str, Bool[Tensor, " B"]]
    """For each of ``FALLBACKS`` the completions that keep their GRPO advantage for that reason."""
    config: CreditConfig
    """``resolved`` for the method."""

    @property
    def reads_signals(self) -> bool:
        """Whether completions are scored at all; else the method reads rewards and advantages alone."""
        return bool(self.signals) or distillation_of(self.method) is not None

    def request(self, needs: Sequence[Signal], inputs: Mapping[str, Tensor] | None = None) -> ForwardRequest:
        """The passes that compute these signals; ``inputs`` are the other signals that they read, by name."""
        return ForwardRequest(
            needs=needs,
            step=self.batch.step,
            completions=self.batch.completions,
            student=self.batch.student,
            teachers=self.teacher.prompts,
            scored_B=self.scored_B,
            skip_first_tokens=self.config.teacher_skip_first_tokens,
            inputs=inputs or {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditResult:
    """The credit of a batch of rollouts, and the signals that it was computed from."""

    credit: Credit
    signals: TokenSignals
    """What the method read; 0 in rows with a non-finite signal."""
    teachers: Sequence[Prompts]
    """The teacher's prompts."""
    scored_B: Bool[Tensor, " B"]
    fallback_B: Mapping[str, Bool[Tensor, " B"]]
    """As in the plan, with the signals that are not finite."""
    trusted_B: Bool[Tensor, " B"]
    """True where signals were computed and the credit is the method's own."""
