"""The progress of a run: one line with the numbers that matter and the time left."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from transformers.trainer_callback import TrainerCallback

from gear_rl.health import health

SHOWN = {
    "reward": "reward",
    "eval_reward": "held out",
    "eval_pass@1": "pass@1",
    "accuracy": "accuracy",
    "gear/divergence/mean": "KL",
    "gear/segments/token_share": "in segments",
    "gear/fallbacks": "fallbacks",
}
"""Metrics of the trainer's log that the bar shows, by name; 0 fallbacks are left out."""


class ProgressLine(TrainerCallback):
    """A bar in a terminal, else one plain line every tenth of the run, with its pace; with health, in both one
    line at every log.

    >>> import sys
    >>> from types import SimpleNamespace
    >>> line = ProgressLine(Console(file=sys.stdout))
    >>> line.note(accuracy=0.5)
    >>> state = SimpleNamespace(global_step=2, max_steps=20, is_world_process_zero=True)
    >>> line.on_log(None, state, None, {"reward": 0.25})
    train 2/20  reward 0.25  accuracy 0.50  ... s a step, ... left
    """

    def __init__(self, console: Console, *, with_health: bool = False) -> None:
        numbers = "[cyan]{task.fields[numbers]}"
        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), numbers, TimeElapsedColumn(), "·")
        self.console, self._health, self._noted = console, with_health, dict[str, Any]()
        self._bar = Progress(
            "train", *columns, TimeRemainingColumn(), "left", console=console, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=None, numbers="")
        # When the first step of this process began, and the steps that the run had then.
        self._begin = time.perf_counter(), 0

    def note(self, **values: float) -> None:
        """Show a number that the trainer does not log, such as a held-out accuracy."""
        self._noted.update(values)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter(), state.global_step
        if state.is_world_process_zero:
            self._bar.start()
            self._bar.reset(self._task, total=state.max_steps, completed=state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._begin[1]:
            # An evaluation before the first step does not count.
            self._begin = time.perf_counter(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        is_step = "reward" in (logs or {})
        if not state.is_world_process_zero or not (is_step or "eval_reward" in (logs or {})):
            return
        # TRL logs None where every reward function abstained.
        logs = {key: value for key, value in (logs or {}).items() if value is not None}
        shown = [
            f"{word} {value:.2f}"
            for key, word in SHOWN.items()
            if (value := (logs | self._noted).get(key)) is not None and (value or key != "gear/fallbacks")
        ]
        done, total = state.global_step, state.max_steps
        self._bar.update(self._task, numbers="  ".join(shown))
        due = done in (1, total) or done % max(1, total // 10) == 0
        if self._health and is_step:
            self._print(f"step {done}/{total}: {health(logs)}{self._pace(state, ', ')}")
        elif self._health:
            self._print(f"after step {done}: {', '.join(shown)}")
        elif is_step and due and not self.console.is_terminal:
            self._print(f"train {done}/{total}  {'  '.join(shown)}{self._pace(state, '  ')}")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def _pace(self, state: Any, before: str) -> str:
        if self.console.is_terminal:  # the bar shows the time left
            return ""
        begin, first = self._begin
        each = (time.perf_counter() - begin) / max(1, state.global_step - first)
        left = timedelta(seconds=round(each * (state.max_steps - state.global_step)))
        return f"{before}{each:.{2 if each < 1 else 1}f} s a step, {left} left"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.stop()

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
