"""SERL: RLSD's weight on what the agent did and was answered, GRPO's advantage on the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gear_rl.methods.rlsd import Rlsd
from gear_rl.tensor.segments import segment_starts, turn_ids
from gear_rl.types import Credit, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Serl:
    """RLSD on action tokens only: the last ``action_tokens`` of a turn that the environment answered.

    Selective hindsight distillation (SERL, arXiv:2605.19447). On an action token ``A_t`` is RLSD's (``of``),
    elsewhere ``A_t = A``. The teacher has to see what the environment said: in TRL
    ``privileged_sources: [feedback]``. A completion of one turn has no answered one and keeps its GRPO advantage,
    unless ``answered_only`` is off.

    >>> signals = TokenSignals(
    ...     mask=torch.tensor([[True, True, False, True]]),  # two turns, and an answer between
    ...     student_logprob=torch.tensor([[-1.0, -1.0, 0.0, -1.0]]),
    ...     teacher_logprob=torch.tensor([[-0.1, -3.0, 0.0, -0.1]]),
    ... )
    >>> Serl()(torch.tensor([2.0]), signals).advantage
    tensor([[2.2000, 1.8000, 0.0000, 2.0000]])
    >>> Serl().at_step(25).of.strength
    0.25
    """

    name: ClassVar[str] = "serl"
    source: ClassVar[str] = "arXiv:2605.19447"
    per_completion: ClassVar[bool] = True
    engine_settings: ClassVar[Mapping[str, Any]] = {"teacher_model_kind": "sync", "teacher_sync_steps": 10}

    of: Rlsd = Rlsd()
    """The RLSD whose advantage an action token gets."""
    action_tokens: int | None = None
    """How many tokens at the end of a turn are its action; None for the whole turn."""
    answered_only: bool = True
    """Only turns that another turn follows: an environment that did not answer gave no feedback on them."""

    def __post_init__(self) -> None:
        # A configuration can name any method here; the types do not hold there.
        if not isinstance(cast(object, self.of), Rlsd):
            raise ValueError(f"of: {self.of.name!r} is not rlsd; give rlsd, with the settings you want")
        if self.action_tokens is not None and self.action_tokens < 1:
            raise ValueError(
                f"action_tokens: {self.action_tokens}; an action has 1 token or more, or None for the whole turn"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        return self.of.needs

    def at_step(self, step: int) -> "Serl":
        """The method with RLSD as it is at optimizer step ``step``, counted from 0."""
        return replace(self, of=self.of.at_step(step))

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        credit = self.of(advantage_B, signals)
        plain = torch.where(signals.mask, advantage_B[:, None], 0.0)
        return replace(credit, advantage=torch.where(self._actions(signals), credit.advantage, plain))

    def _actions(self, signals: TokenSignals) -> Bool[Tensor, "B T"]:
        turn_id = turn_ids(signals.mask) if signals.turn_id is None else signals.turn_id
        action = signals.mask
        if self.answered_only and turn_id.shape[-1]:
            action = action & (turn_id < turn_id.amax(-1, keepdim=True))
        if self.action_tokens is not None and turn_id.shape[-1]:
            action = action & (_since_start(turn_id.flip(-1)).flip(-1) < self.action_tokens)
        return action


def _since_start(turn_id: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """How many columns each token stands after the first one of its turn."""
    column = torch.arange(turn_id.shape[-1], device=turn_id.device).expand(turn_id.shape)
    return column - torch.where(segment_starts(turn_id), column, 0).cummax(-1).values
