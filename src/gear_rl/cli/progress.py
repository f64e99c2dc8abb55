"""What a person sees of a run while it goes on: one line with the numbers that matter and the time left."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers.trainer_callback import TrainerCallback

SHOWN = {
    "reward": "reward",
    "eval_reward": "held out",
    "eval_pass@1": "pass@1",
    "accuracy": "accuracy",
    "gear/divergence/mean": "KL",
    "gear/segments/token_share": "in segments",
    "gear/fallbacks": "fallbacks",
}
"""Metrics of the trainer's log that the line shows, and what it calls them; a missing one is left out."""


def _summary_line(logs: Mapping[str, Any]) -> str:
    """The numbers of one log entry as text.

    >>> _summary_line({"reward": 0.4166, "gear/divergence/mean": 0.25, "loss": 3.0})
    'reward 0.42  KL 0.25'
    """
    parts: list[str] = []
    for key, word in SHOWN.items():
        value = logs.get(key)
        if isinstance(value, int | float) and (key != "gear/fallbacks" or value):
            parts.append(f"{word} {value:.1f}" if key == "gear/fallbacks" else f"{word} {value:.2f}")
    return "  ".join(parts)


def _pace(seconds: float, steps: int, left: int) -> str:
    """Seconds per step and the time left, as text; empty before the first step.

    >>> _pace(90.0, 20, 800), _pace(3.0, 4, 12), _pace(0.0, 0, 9)
    ('  4.5 s a step, 1:00:00 left', '  0.75 s a step, 0:09 left', '')
    """
    if steps < 1:
        return ""
    each = seconds / steps
    minutes, rest = divmod(round(each * left), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
    return f"  {each:.{2 if each < 1 else 1}f} s a step, {clock} left"


class ProgressLine(TrainerCallback):
    """A bar in a terminal; where output is no terminal, one plain line every tenth of the run, with its pace.

    >>> from types import SimpleNamespace
    >>> line = ProgressLine(Console(file=sys.stdout))
    >>> line.note(accuracy=0.5)
    >>> state = SimpleNamespace(global_step=2, max_steps=20, is_world_process_zero=True)
    >>> line.on_log(None, state, None, {"reward": 0.25})
    train 2/20  reward 0.25  accuracy 0.50  ... a step, ... left
    """

    def __init__(self, console: Console | None = None, word: str = "train") -> None:
        self.console = console or Console(file=sys.stderr)
        self.word, self._latest, self._bar, self._task = word, {}, None, None
        self._begin = (time.perf_counter(), 0)

    _latest: dict[str, Any]
    _begin: tuple[float, int]
    """When the first step of this process began, and the steps that the run had then."""
    _bar: Progress | None
    _task: Any

    def note(self, **values: float) -> None:
        """Show a number that the trainer does not log, such as a held-out accuracy."""
        self._latest.update(values)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter(), state.global_step
        if not state.is_world_process_zero or not self.console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[cyan]{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("·"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._bar = Progress(*columns, console=self.console)
        self._bar.start()
        self._task = self._bar.add_task(
            self.word, total=state.max_steps, completed=state.global_step, numbers=""
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._begin[1]:
            # An evaluation before the first step is no part of its pace.
            self._begin = time.perf_counter(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step, numbers=_summary_line(self._latest))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._latest.update(logs or {})
        if self._bar is not None:
            self._bar.update(self._task, numbers=_summary_line(self._latest))
        elif state.is_world_process_zero and not self.console.is_terminal and "reward" in (logs or {}):
            every = max(1, state.max_steps // 10)
            if state.global_step % every == 0 or state.global_step in (1, state.max_steps):
                line = f"{self.word} {state.global_step}/{state.max_steps}  {_summary_line(self._latest)}"
                begin, done = self._begin
                pace = _pace(
                    time.perf_counter() - begin, state.global_step - done, state.max_steps - state.global_step
                )
                self.console.print(line + pace, highlight=False, soft_wrap=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
