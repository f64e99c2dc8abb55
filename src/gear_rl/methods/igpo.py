"""IGPO: a turn is rewarded for how much likelier it made the right answer."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.errors import warn_once
from gear_rl.settings import Positive, Share, settings_class
from gear_rl.signals.confidence import AnswerConfidence
from gear_rl.tensor.groups import (
    following,
    group_numbers,
    group_relative,
    has_turn,
    last_turn,
    on_turns,
    returns_to_go,
    turn_groups,
    turn_values,
)
from gear_rl.types import Credit, Signal, TokenSignals

Baseline = Literal["turn", "group", "kind", "token"]
Compare = Literal["returns", "igpo"]


@settings_class
class Igpo:
    """A turn is credited with what it and later turns add to the student's confidence in the true answer.

    IGPO (arXiv:2510.14967). With ``P_k`` the confidence before turn k, ``r_k = P_{k+1} - P_k``; the last turn
    has the completion's reward. ``A_k`` is ``G_k = sum_{l >= k} discount^(l - k) r_l`` less the mean of the
    group's ``G`` at turns k; 0 where no other has one. The turn is the segment.
    **Additive**: nothing of the advantage is left at ``strength=1``.

    The answer is the privileged context: set ``privileged_column: answer`` beside worked solutions. The default
    is ours: releases compare tokens of one index (``baseline="token"``), or rewards before the sum
    (``compare="igpo", baseline="group", scale=True``).

    >>> signals = TokenSignals(
    ...     mask=torch.tensor([[True, False, True], [True, False, True]]),
    ...     group_B=torch.tensor([0, 0]),
    ...     reward_B=torch.tensor([1.0, 0.0]),
    ...     answer_confidence=torch.tensor([[0.25, 0.0, 0.75], [0.25, 0.0, 0.25]]),
    ... )
    >>> Igpo()(torch.tensor([0.7, -0.7]), signals).advantage
    tensor([[ 0.7500,  0.0000,  0.5000],
            [-0.7500,  0.0000, -0.5000]])
    """

    name: ClassVar[str] = "igpo"
    source: ClassVar[str] = "arXiv:2510.14967"
    additive: ClassVar[bool] = True

    strength: Share = 1.0
    """Share of IGPO's credit; the rest is the advantage's. 0 gives GRPO."""
    discount: Share = 1.0
    """Per turn; 1 in both releases."""
    compare: Compare = "returns"
    """What is compared in the group: ``returns``, after the discounted sum, or, as in the paper (``igpo``), the
    rewards before it; credit then depends on the number of turns."""
    baseline: Baseline = "turn"
    """What a turn is compared with: the group's turns of the same number (``turn``, ours), all its turns
    (``group``), last with last and others with others (``kind``), or tokens of the same index (``token``)."""
    scale: bool = False
    """Divide by the deviation of what is compared."""
    epsilon: Positive = 1e-6
    """Added to the deviation; unused without ``scale``."""

    answer_template: str = "{privileged_context}"
    """Template of the true answer's text."""

    def __post_init__(self) -> None:
        AnswerConfidence(self.answer_template)
        if self.baseline == "token" and (self.compare != "returns" or self.discount != 1.0):
            raise ValueError(
                "baseline: 'token' is the first release's rule, which compares returns without a discount; set "
                "compare to 'returns' and discount to 1"
            )
        if self.compare == "igpo":
            warn_once(
                "igpo: compare=igpo takes a mean reward off each turn that is left: of two equal returns the one "
                "in more turns gets less (more, where the mean is below 0); compare=returns does not"
            )

    @property
    def needs(self) -> tuple[str | Signal, ...]:
        if self.strength == 0:
            return ()
        return ("group_B", "reward_B", AnswerConfidence(self.answer_template))

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        mask = signals.mask
        turn_id = signals.turn_id
        advantage = advantage_B[:, None].expand(mask.shape)
        if self.strength > 0:
            has = has_turn(turn_id)
            confidence = turn_values(signals.get("answer_confidence"), turn_id)
            gain = following(confidence) - confidence  # 0 where there is no turn; the last turn's is not read
            reward = torch.where(last_turn(has), signals.get("reward_B")[:, None], gain)
            own = self._compared(reward, signals.get("group_B"), has, turn_id)
            advantage = (1.0 - self.strength) * advantage + self.strength * own
        return Credit(advantage=torch.where(mask, advantage, 0.0), segment_id=turn_id)

    def _compared(
        self,
        reward: Float[Tensor, "B K"],
        group_B: Int[Tensor, " B"],
        has: Bool[Tensor, "B K"],
        turn_id: Int[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        epsilon = self.epsilon if self.scale else None
        returns, same_turn = returns_to_go(reward, self.discount), turn_groups(group_B, has.shape[1])
        if self.baseline == "token":
            return group_relative(_at_every_index(returns, turn_id), same_turn, epsilon=epsilon)
        group = group_B[:, None].expand(has.shape)
        kind = group_numbers(group, last_turn(has).long())
        among = {"turn": same_turn, "group": group, "kind": kind}[self.baseline]
        if self.compare == "returns":
            return on_turns(group_relative(returns, among, has, epsilon=epsilon), turn_id)
        relative = group_relative(reward, among, has, epsilon=epsilon)
        return on_turns(returns_to_go(relative, self.discount), turn_id)


def _at_every_index(returns: Float[Tensor, "B K"], turn_id: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The return of the turn that a column belongs to or, outside of turns, of the next one; 0 after the
    last."""
    num_tokens = turn_id.shape[1]
    if num_tokens == 0:
        return returns
    # A column of turn k has its end, and all later ends, before it: the nearest turn from here on.
    coming = torch.where(turn_id >= 0, turn_id, num_tokens).flip(-1).cummin(-1).values.flip(-1)
    return torch.nn.functional.pad(returns, (0, 1)).gather(1, coming)
