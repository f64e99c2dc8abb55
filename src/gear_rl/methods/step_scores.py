"""Scores of steps that the user has: as rewards that are compared in the group, or as weights."""

from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from gear_rl.errors import warn_once
from gear_rl.settings import NotNegative, Positive, Share, settings_class
from gear_rl.signals.steps import PrmScore, StepId, Steps, StepScore
from gear_rl.tensor.groups import (
    group_relative,
    has_turn,
    on_turns,
    returns_to_go,
    turn_advantages,
    turn_values,
)
from gear_rl.tensor.segments import run_ids
from gear_rl.types import Credit, Signal, TokenSignals

Use = Literal["rewards", "process_supervision", "weights"]


@settings_class
class StepScores:
    """Scores of steps, from a reward function, an environment or a process reward model.

    ``use="rewards"``, ours, **additive**: ``A_t = A + strength (G_k - mean) / std``, with
    ``G_k = sum_{l >= k} discount^(l - k) r_l``, the mean over the group's steps k, the deviation of summed
    scores; ``G_k - mean`` is at most the root of their summed squares, so equal sums give 0.
    ``use="process_supervision"`` (arXiv:2402.03300, 4.1.3): ``r`` is normalised over the group's steps, then
    summed. ``use="weights"``, ours, scores in [0, 1]: ``A_t = A (1 + strength (w_k - 1))``, ``w`` the score
    if ``A > 0``, else 1 less it, over its mean. Tokens outside steps keep ``A``. The step is the segment.

    >>> signals = TokenSignals(mask=torch.ones(2, 4, dtype=torch.bool),
    ...     step_id=torch.tensor([[0, 0, 1, 1]] * 2), step_score=torch.tensor([[0.75, 0.75, 0.25, 0.25]] * 2))
    >>> StepScores(use="weights", steps="separator")(torch.tensor([2.0, -2.0]), signals).advantage
    tensor([[ 3.,  3.,  1.,  1.],
            [-1., -1., -3., -3.]])
    """

    name: ClassVar[str] = "step_scores"
    source: ClassVar[str] = "arXiv:2402.03300"

    use: Use = "rewards"
    """``rewards``: returns are compared in the group and added, so that a further step pays what it scores.
    ``process_supervision``: scores are compared, then summed; credit then depends on the number of steps.
    ``weights``: scores share out the advantage."""
    steps: Steps = "turns"
    """A step is one of the ``turns``, ``tokens``, ``spans`` of characters, or what ends with ``separator``."""
    separator: Annotated[str, Field(min_length=1)] = "\n\n"
    """The text that ends a step; ``\\n`` in it is a line break."""
    prm: str | None = None
    """Process reward model: a token classifier over the policy's vocabulary, whose last class is read at step
    ends."""
    strength: NotNegative = 1.0
    """Weight of the scores; 0 gives GRPO."""
    discount: Share = 1.0
    """Per step, of later rewards; 0 credits each step with its own only. Below 1 an early score pays more than a
    late one: keep 1 where the last step alone has one."""
    outcome: bool = True
    """Add the completion's own advantage to the rewards; the source does not."""
    epsilon: Positive = 1e-4
    """Added to the deviation."""

    def __post_init__(self) -> None:
        if self.use == "weights" and self.strength > 1:
            raise ValueError(f"strength: {self.strength}; give 0 to 1 with use=weights")
        if self.prm is not None and self.steps == "spans":
            raise ValueError(
                "steps: 'spans' come from a reward function with their scores, so there is nothing for prm; "
                "set steps to turns, tokens or separator"
            )
        if self.use == "process_supervision":
            warn_once(
                "step_scores: use=process_supervision takes the group's mean score off each step that is left: "
                "of two equal returns the one in more steps gets less (more, where the mean is below 0); "
                "use=rewards compares returns"
            )

    @property
    def additive(self) -> bool:
        """Whether the scores are rewards."""
        return self.use != "weights"

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        if self.strength == 0:
            return ()
        siblings = ("group_B",) if self.additive else ()
        step = StepId(self.steps, self.separator)
        if self.prm is not None:
            return (*siblings, step, PrmScore(self.prm, self.steps, self.separator))
        return (*siblings, step, StepScore(self.steps, self.separator))

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        if self.strength == 0:
            one = torch.where(mask, 0, -1)
            return Credit.from_weights(advantage_B, torch.ones_like(mask, dtype=torch.float32), one)
        step_id, score = signals.get("step_id"), signals.get("step_score")
        segment_id, inside = run_ids(step_id, mask), step_id >= 0
        if self.use == "weights":
            weight = 1 + self.strength * (_weights(advantage_B, score, inside) - 1)
            return Credit.from_weights(advantage_B, weight, segment_id)
        own = advantage_B[:, None].expand(mask.shape)
        advantage = torch.where(inside, own if self.outcome else 0.0, own)
        advantage = advantage + self.strength * self._compared(score, step_id, signals.get("group_B"))
        return Credit(advantage=torch.where(mask, advantage, 0.0), segment_id=segment_id)

    def _compared(
        self, score: Float[Tensor, "B T"], step_id: Int[Tensor, "B T"], group_B: Int[Tensor, " B"]
    ) -> Float[Tensor, "B T"]:
        """The rewards from a token's step on, beside the group's."""
        reward, has = turn_values(score, step_id), has_turn(step_id)
        if self.use == "rewards":
            own = turn_advantages(reward, group_B, has, discount=self.discount, epsilon=self.epsilon)
            return on_turns(own, step_id)
        relative = group_relative(reward, group_B[:, None].expand(reward.shape), has, epsilon=self.epsilon)
        return on_turns(returns_to_go(relative, self.discount), step_id)


def _weights(
    advantage_B: Float[Tensor, " B"], score: Float[Tensor, "B T"], inside: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The scores as shares of the advantage, of mean 1 over the tokens of steps; 1 where all are 0."""
    odd = score[inside & ((score < 0) | (score > 1))]
    if len(odd):
        raise ValueError(
            f"step_scores: a score of {float(odd[0]):g}; use=weights takes 0 to 1, use=rewards any number"
        )
    share = torch.where(inside, torch.where(advantage_B[:, None] > 0, score, 1 - score), 0.0)
    mean = share.sum(-1, keepdim=True) / inside.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(inside & (mean > 0), share / torch.where(mean > 0, mean, 1.0), 1.0)
