"""Prints log lines with few of our metrics, and warns if nothing is learned."""

import logging
from typing import Any

from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from gear_rl.health import nothing_to_learn

logger = logging.getLogger(__name__)

PRINTED = ("gear/scored", "gear/fallbacks", "gear/segments/token_share", "gear/teacher/informed")
"""The ``gear/*`` metrics that are printed; trackers and ``log_history`` get all."""
STEPS_TO_WARN = 3
"""Logging steps in a row without anything to learn, after which a run warns, once."""


class _Short(TrainerCallback):
    """Leaves all ``gear/*`` metrics but those of ``PRINTED`` out of what the next class prints."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        shown = {k: v for k, v in (logs or {}).items() if not k.startswith("gear/") or k in PRINTED}
        super().on_log(args, state, control, logs=shown, **kwargs)


class ShortProgress(_Short, ProgressCallback):
    """Transformers' progress bar."""


class ShortPrinter(_Short, PrinterCallback):
    """The same without a bar."""


SHORT: dict[type[TrainerCallback], type[TrainerCallback]] = {
    ProgressCallback: ShortProgress,
    PrinterCallback: ShortPrinter,
}
"""Transformers' printers, and ours that replace them."""


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
