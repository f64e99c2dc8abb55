"""The health of a run, out of its log: a line for each logging step, and why nothing is learned.

Everything comes from the trainer's log, so nothing is computed or gathered for it.
"""

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerCallback

from gear_rl.credit.contexts import needs_context, privileged_context
from gear_rl.signals.forwards import max_positions, unwrapped

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

logger = logging.getLogger(__name__)

ROWS_TO_MEASURE = 10_000
"""Rows whose texts are measured before a run."""
STEPS_TO_WARN = 3
"""Logging steps in a row without anything to learn, after which a run warns, once."""


def health(logs: Mapping[str, float]) -> str:
    """The line of a step: groups with a spread of rewards, completions scored and cut off, what credit did.

    >>> health({"frac_reward_zero_std": 0.25, "gear/scored": 24.0, "completions/clipped_ratio": 0.5})
    '75% of groups differ in reward, 24 completions scored, 50% cut off'
    >>> health({"frac_reward_zero_std": 1.0, "gear/fallbacks": 8.0, "gear/fallback/long_context": 8.0})
    '0% of groups differ in reward, 8 fallbacks (8 long_context)'
    """
    parts = [f"{1 - logs['frac_reward_zero_std']:.0%} of groups differ in reward"]
    if "gear/scored" in logs:
        parts.append(f"{logs['gear/scored']:.0f} completions scored")
    if logs.get("completions/clipped_ratio"):
        parts.append(f"{logs['completions/clipped_ratio']:.0%} cut off")
    if logs.get("gear/fallbacks"):
        kinds = {
            key.removeprefix("gear/fallback/"): n for key, n in logs.items() if "/fallback/" in key and n
        }
        why = ", ".join(f"{n:.0f} {kind}" for kind, n in kinds.items())
        parts.append(f"{logs['gear/fallbacks']:.0f} fallbacks ({why})")
    if "gear/segments/token_share" in logs:
        parts.append(f"{logs['gear/segments/token_share']:.0%} of tokens in segments")
    if "gear/teacher/informed" in logs:
        parts.append(f"teacher informed {logs['gear/teacher/informed']:.2f}")
    return ", ".join(parts)


def nothing_to_learn(logs: Mapping[str, float]) -> str | None:
    """The likeliest reason why a step could not change the model; None where it could.

    >>> nothing_to_learn({"frac_reward_zero_std": 1.0, "reward": 0.0, "grad_norm": 0.0})
    'every completion got reward 0: the prompts are too hard, or the reward does not see the answer'
    >>> nothing_to_learn({"frac_reward_zero_std": 0.5, "reward": 0.5, "grad_norm": 0.2})
    """
    if logs.get("grad_norm") != 0:
        return None
    if logs.get("completions/clipped_ratio") == 1:
        return "every completion was cut off, so none is trained: raise max_completion_length"
    if logs["frac_reward_zero_std"] < 1:
        return "rewards differ, but the gradient is 0: is any sampled token trained?"
    if logs.get("reward_std") or logs["reward"] not in (0, 1):
        return "the completions of a prompt all got one reward: raise temperature, or take a finer reward"
    if logs["reward"] == 1:
        return "every completion got reward 1: the prompts are too easy"
    return "every completion got reward 0: the prompts are too hard, or the reward does not see the answer"


class Health(TrainerCallback):
    """Warns, once, after ``STEPS_TO_WARN`` logging steps in a row that taught nothing."""

    def __init__(self) -> None:
        self._idle = 0

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if not logs or "frac_reward_zero_std" not in logs:
            return
        why = nothing_to_learn(logs)
        self._idle = self._idle + 1 if why is not None else 0
        if self._idle == STEPS_TO_WARN and state.is_world_process_zero:
            logger.warning("nothing was learned in the last %d logged steps: %s", STEPS_TO_WARN, why)


def warn_before(trainer: "GEARTrainer") -> None:
    """Log what can be seen of a run before its first step: rows that nothing evaluates, texts that cannot fit."""
    args, rows = trainer.args, trainer.train_dataset
    if trainer.eval_dataset is not None and args.eval_strategy == "no":
        message = "eval_dataset: nothing evaluates it; set eval_strategy to steps, and eval_steps"
        logger.warning(message)
    places = max_positions(unwrapped(trainer.model).config)
    if places is None or not hasattr(rows, "__len__") or "prompt" not in rows.column_names:
        return
    reads, column, limit = needs_context(trainer.credit), args.privileged_column, args.max_privileged_tokens
    prompts, contexts = list[int](), list[int]()
    for number, row in enumerate(rows.select(range(min(len(rows), ROWS_TO_MEASURE)))):
        prompt = row["prompt"] if isinstance(row["prompt"], str) else json.dumps(row["prompt"], default=str)
        found = privileged_context(row, column) if reads else None
        context = "" if found is None else found[1]
        # A token has at least one byte, so most rows need no tokenizer.
        if len((prompt + context).encode()) < min(places, limit or places):
            continue
        texts = [text[: 8 * places] for text in (prompt, context)]  # the beginning shows that it is too long
        length, more = (len(trainer._tokenizer(text)["input_ids"]) for text in texts)
        if length >= places:
            prompts.append(number)
        elif length + more >= places or (limit is not None and more > limit):
            contexts.append(number)
    if prompts:
        logger.warning(
            "train_dataset: %d prompts (the first in row %d) exceed the model's %d positions; leave them out",
            len(prompts), prompts[0], places,
        )  # fmt: skip
    if contexts:
        logger.warning(
            "train_dataset: %d privileged contexts (the first in row %d) do not fit beside the prompt into %d "
            "positions or max_privileged_tokens; their completions keep their GRPO advantage",
            len(contexts), contexts[0], places,
        )  # fmt: skip
