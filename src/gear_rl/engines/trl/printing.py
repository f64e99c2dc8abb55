"""What a script prints of each log line: transformers' own printers, with few of our metrics."""

from collections.abc import Mapping
from typing import Any

from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

PRINTED = ("gear/scored", "gear/fallbacks", "gear/segments/token_share", "gear/teacher/informed")
"""The ``gear/*`` metrics that are printed; trackers and ``log_history`` get all."""


class ShortProgress(ProgressCallback):
    """Transformers' progress bar, whose lines have the metrics of ``PRINTED`` alone of ours."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        super().on_log(args, state, control, logs=_short(logs or {}), **kwargs)


class ShortPrinter(PrinterCallback):
    """The same without a bar."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        super().on_log(args, state, control, logs=_short(logs or {}), **kwargs)


SHORT: dict[type[TrainerCallback], type[TrainerCallback]] = {
    ProgressCallback: ShortProgress,
    PrinterCallback: ShortPrinter,
}
"""Transformers' printers, and ours that replace them."""


def _short(logs: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in logs.items() if not key.startswith("gear/") or key in PRINTED}
