"""What is known of the single turns of a batch of TRL's rollouts: their rewards, and the states they began in."""

# TRL and transformers are only partly typed; what crosses this seam is checked by the tests instead.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from typing import Any, cast

from accelerate.utils import gather_object
from torch import Tensor

from gear_rl.credit.turns import anchor_ids, anchor_texts, turn_reward_values
from gear_rl.engines.tools import ANCHOR_STATES, TURN_REWARDS, told
from gear_rl.signals.score import Completions


def turn_signals(trainer: Any, needs: Sequence[str], completions: Completions) -> dict[str, Tensor]:
    """``turn_reward`` and ``anchor_id``, as far as they are needed."""
    rollouts = cast(list[Any], trainer._rollout_completions)
    found: dict[str, Tensor] = {}
    if "turn_reward" in needs:
        known = _tools_of(trainer, len(rollouts))

        def failed(b: int, message: Mapping[str, Any]) -> bool:
            return trainer._guard.failure_of(message, known[b]) is not None

        found["turn_reward"] = turn_reward_values(
            completions=rollouts,
            mask=completions.mask,
            failed=failed,
            environment=_told(trainer, TURN_REWARDS),
            logged=trainer._turn_rewards,
        )
    if "anchor_id" in needs:
        texts = anchor_texts(
            completions=rollouts, mask=completions.mask, environment=_told(trainer, ANCHOR_STATES)
        )
        first = trainer.accelerator.process_index * len(rollouts)
        groups = [(first + b) // trainer.num_generations for b in range(len(rollouts))]
        # Numbers must agree between siblings, which may be on another process.
        everyone = cast(list[tuple[list[str | None], int]], gather_object([*zip(texts, groups, strict=True)]))
        found["anchor_id"] = anchor_ids(
            [row for row, _ in everyone],
            [group for _, group in everyone],
            completions.mask,
            first=first,
            similarity=trainer.args.anchor_similarity,
        )
    return found


def _told(trainer: Any, name: str) -> list[Any] | None:
    if not getattr(trainer, "environments", None):
        return None
    return [told(environment, name) for environment in trainer.environments]


def _tools_of(trainer: Any, count: int) -> list[list[str]]:
    """The names of the tools that each rollout could call."""
    if not trainer.tools:
        return [[] for _ in range(count)]
    pairs = zip(trainer._sync_tool_dicts, trainer._async_tool_dicts, strict=True)
    return [sorted({*sync, *anew}) for sync, anew in pairs]
