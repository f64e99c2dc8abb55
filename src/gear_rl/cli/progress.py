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
    "gear/divergence/mean": "KL",
    "gear/segments/token_share": "in segments",
    "gear/fallbacks": "fallbacks",
}
"""Metrics of the trainer's log that the bar shows, by name; 0 fallbacks are left out."""


class ProgressLine(TrainerCallback):
    """A line at every log, in a terminal above a bar.

    >>> import sys
    >>> from types import SimpleNamespace
    >>> line = ProgressLine(Console(file=sys.stdout))
    >>> state = SimpleNamespace(global_step=2, max_steps=20, is_world_process_zero=True)
    >>> line.on_log(None, state, None, {"reward": 0.25, "frac_reward_zero_std": 0.0})
    step 2/20: reward 0.25, 100% of groups differ in reward, ... s a step, ... left
    """

    def __init__(self, console: Console) -> None:
        numbers = "[cyan]{task.fields[numbers]}"
        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), numbers, TimeElapsedColumn(), "·")
        self.console = console
        self._bar = Progress(
            "train", *columns, TimeRemainingColumn(), "left", console=console, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=None, numbers="")
        # When the first step of this process began, and the steps that the run had then.
        self._begin = time.perf_counter(), 0

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
            if (value := logs.get(key)) is not None and (value or key != "gear/fallbacks")
        ]
        done, total = state.global_step, state.max_steps
        self._bar.update(self._task, numbers="  ".join(shown))
        step = f"step {done}/{total}: {health(logs)}{self._pace(state)}" if is_step else ""
        line = step or f"after step {done}: {', '.join(shown)}"
        self.console.print(line, highlight=False, soft_wrap=True)

    def _pace(self, state: Any) -> str:
        if self.console.is_terminal:  # the bar shows the time left
            return ""
        begin, first = self._begin
        each = (time.perf_counter() - begin) / max(1, state.global_step - first)
        left = timedelta(seconds=round(each * (state.max_steps - state.global_step)))
        return f", {each:.{2 if each < 1 else 1}f} s a step, {left} left"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.stop()

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
