"""What a run is warned of: rows that cannot be used, before its first step, and steps that teach nothing."""

import json
import logging
from typing import TYPE_CHECKING, Any, cast

from transformers.trainer_callback import TrainerCallback

from gear_rl.credit.contexts import privileged_context
from gear_rl.health import nothing_to_learn
from gear_rl.signals.forwards import max_positions, unwrapped
from gear_rl.signals.signal import needs_context

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

logger = logging.getLogger(__name__)

ROWS_TO_MEASURE = 10_000
"""Rows whose texts are measured before a run."""
STEPS_TO_WARN = 3
"""Logging steps in a row without anything to learn, after which a run warns, once."""


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
    args, rows = trainer.args, cast(Any, trainer.train_dataset)
    if trainer.eval_dataset is not None and args.eval_strategy == "no":
        message = "eval_dataset: nothing evaluates it; set eval_strategy to steps, and eval_steps"
        logger.warning(message)
    places = max_positions(unwrapped(trainer.model).config)
    if places is None or not hasattr(rows, "__len__") or "prompt" not in rows.column_names:
        return
    reads = needs_context(trainer.credit) and "row" in (args.privileged_sources or ())
    column, limit = args.privileged_column, args.max_privileged_tokens
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
