"""SERL: RLSD on the agent's actions, GRPO on all other tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gear_rl.methods.rlsd import Rlsd
from gear_rl.settings import Count, settings_class
from gear_rl.tensor.segments import since_segment_start
from gear_rl.types import Credit, TokenSignals


@settings_class
class Serl:
    """RLSD on action tokens only: the last ``action_tokens`` of a turn that the environment answered.

    Selective hindsight distillation (SERL, arXiv:2605.19447): an action token gets RLSD's advantage (``of``),
    any other keeps ``A``.

    The release finds actions by tags in the text; here a thought before the call counts as action unless
    ``action_tokens`` excludes it. The release has a feedback text per step, we have one per failed rollout.
    Use it for agents, with ``privileged_sources: [feedback]``; a completion of one turn keeps its GRPO
    advantage.

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
    engine_settings: ClassVar[Mapping[str, Any]] = {"teacher_model_kind": "sync", "teacher_sync_steps": 10}

    of: Rlsd = Rlsd()
    """RLSD with its settings."""
    action_tokens: Count | None = None
    """Number of tokens at the end of a turn that are its action; None for the whole turn."""
    answered_only: bool = True
    """Only turns that another turn follows: the last one got no feedback."""

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
        turn_id = signals.turn_id
        action = signals.mask
        if self.answered_only and turn_id.shape[-1]:
            action = action & (turn_id < turn_id.amax(-1, keepdim=True))
        if self.action_tokens is not None:
            action = action & (since_segment_start(turn_id.flip(-1)).flip(-1) < self.action_tokens)
        return action
