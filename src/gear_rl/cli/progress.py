"""The progress of a run: one line with the numbers that matter and the time left."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

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
"""Metrics of the trainer's log that the line shows, by name; 0 fallbacks are left out."""


class ProgressLine(TrainerCallback):
    """A bar in a terminal, else one plain line every tenth of the run, with its pace; with health, a line of it
    at every log.

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
        self.console, self._health, self._latest = console, with_health, dict[str, Any]()
        self._bar = Progress(
            "train", *columns, TimeRemainingColumn(), "left", console=console, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=None, numbers="")
        # When the first step of this process began, and the steps that the run had then.
        self._begin = time.perf_counter(), 0

    def note(self, **values: float) -> None:
        """Show a number that the trainer does not log, such as a held-out accuracy."""
        self._latest.update(values)

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
        # TRL logs None where every reward function abstained.
        logs = {key: value for key, value in (logs or {}).items() if value is not None}
        self._latest.update(logs)
        if self._health and state.is_world_process_zero and "frac_reward_zero_std" in logs:
            line = f"step {state.global_step}: {health(logs)}"
            self.console.print(line, highlight=False, soft_wrap=True)
        latest = {
            word: self._latest[key]
            for key, word in SHOWN.items()
            if key in self._latest and (self._latest[key] or key != "gear/fallbacks")
        }
        numbers = "  ".join(f"{word} {value:.2f}" for word, value in latest.items())
        done, total = state.global_step, state.max_steps
        self._bar.update(self._task, numbers=numbers)
        due = done in (1, total) or done % max(1, total // 10) == 0
        if due and state.is_world_process_zero and not self.console.is_terminal and "reward" in logs:
            begin, before = self._begin
            each = (time.perf_counter() - begin) / max(1, done - before)
            left = timedelta(seconds=round(each * (total - done)))
            line = f"train {done}/{total}  {numbers}  {each:.{2 if each < 1 else 1}f} s a step, {left} left"
            self.console.print(line, highlight=False, soft_wrap=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.stop()

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
