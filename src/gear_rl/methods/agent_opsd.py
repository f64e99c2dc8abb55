"""AgentOPSD: how much a turn revises the teacher's belief in success."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from gear_rl.settings import Positive, Share, settings_class
from gear_rl.tensor.groups import group_relative, has_turn, on_turns, returns_to_go, turn_sums
from gear_rl.tensor.masked import masked_mean
from gear_rl.types import Credit, TokenSignals


@settings_class
class AgentOpsd:
    """A turn's advantage is scaled by how far it changes the privileged teacher's belief in success.

    AgentOPSD (arXiv:2608.05987): ``e_k`` is the log-ratio of teacher to student, summed over turn k, and
    ``c_k = decay c_(k-1) + e_k``. The belief is ``b_k = sigmoid(logit(b_0) + c_k)``, with ``b_0`` the group's
    share of successes, kept within ``prior_margin`` and ``1 - prior_margin``. With ``z_k`` the z-score of
    ``sign(A) (b_k - b_(k-1))`` over the completion's turns,
    ``A_k = A (1 - strength + strength clip(1 + width z_k, 1 - width, 1 + width))``.

    From the released pseudocode; deviation and ``epsilon`` are our reading. One turn keeps its GRPO advantage.
    The turn is the segment.

    >>> signals = TokenSignals(
    ...     mask=torch.tensor([[True, True, False, True]]),  # two turns, and an answer between
    ...     student_logprob=torch.tensor([[-1.0, -1.0, 0.0, -1.0]]),
    ...     teacher_logprob=torch.tensor([[-0.5, -0.5, 0.0, -3.0]]),
    ...     group_B=torch.tensor([0]),
    ...     success_B=torch.tensor([1.0]),
    ... )
    >>> AgentOpsd(prior_margin=0.5)(torch.tensor([2.0]), signals).advantage
    tensor([[2.2000, 2.2000, 0.0000, 1.8000]])
    """

    name: ClassVar[str] = "agent_opsd"
    source: ClassVar[str] = "arXiv:2608.05987"

    strength: Share = 0.5
    """Share of the advantage that is scaled, the paper's lambda; 0 gives GRPO."""
    width: Share = 0.2
    """The weight of a turn is kept between 1 - width and 1 + width; the paper's b, which also scales ``z``."""
    decay: Share = 0.95
    """Share of the earlier turns' evidence that stays, per turn; the paper's gamma."""
    prior_margin: Annotated[float, Field(gt=0, le=0.5)] = 1e-3
    """Least distance of the initial belief from 0 and 1."""
    epsilon: Positive = 1e-6
    """Added to the deviation of a completion's belief changes."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_logprob", "teacher_logprob", "group_B", "success_B") if self.strength > 0 else ()

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        turn_id = signals.turn_id
        weight = torch.ones_like(signals.mask, dtype=advantage_B.dtype)
        if self.strength > 0:
            has = has_turn(turn_id)
            log_ratio = signals.get("teacher_logprob") - signals.get("student_logprob")
            # Summed from the front, which is to go from the back.
            evidence = returns_to_go(turn_sums(log_ratio, turn_id).flip(-1), self.decay).flip(-1)
            success_B = signals.get("success_B").to(advantage_B.dtype)
            share_B = success_B - group_relative(success_B, signals.get("group_B"))
            prior_B = share_B.clamp(self.prior_margin, 1.0 - self.prior_margin)
            before = nn.functional.pad(evidence, (1, 0))[:, : evidence.shape[1]]
            change = _difference(prior_B.logit()[:, None] + before, evidence - before)
            revision = torch.where(has, advantage_B.sign()[:, None] * change, 0.0)
            centred = torch.where(has, revision - masked_mean(revision, has), 0.0)
            deviation = masked_mean(centred.square(), has).sqrt()
            z = centred / (deviation + self.epsilon)
            turn = (1.0 + self.width * z).clamp(1.0 - self.width, 1.0 + self.width)
            weight = 1.0 + self.strength * (on_turns(turn, turn_id) - 1.0)
        return Credit.from_weights(advantage_B, weight, turn_id)


def _difference(logit: Float[Tensor, "B K"], more: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """``sigmoid(logit + more) - sigmoid(logit)`` of numbers near 0 or 1, without a difference of them."""
    low, high = logit + more.clamp(max=0.0), logit + more.clamp(min=0.0)
    log_size = nn.functional.logsigmoid(high) + nn.functional.logsigmoid(-low)
    return -more.sign() * log_size.exp() * (-more.abs()).expm1()
