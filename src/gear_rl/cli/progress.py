"""The progress of a run: at every log a line with the numbers that matter and the time left."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from transformers.trainer_callback import TrainerCallback

from gear_rl.health import health

_EVALUATION = {"eval_reward": "held out", "eval_pass@1": "pass@1"}
"""Metrics of an evaluation's log that are shown, by name."""


class ProgressLine(TrainerCallback):
    """A line at every log.

    >>> import sys
    >>> from types import SimpleNamespace
    >>> line = ProgressLine(Console(file=sys.stdout))
    >>> state = SimpleNamespace(global_step=2, max_steps=20, is_world_process_zero=True)
    >>> line.on_log(None, state, None, {"reward": 0.25, "frac_reward_zero_std": 0.0})
    step 2/20: reward 0.25, 100% of groups differ in reward, ... s a step, ... left
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        # When the first step of this process began, and the steps that the run had then.
        self._begin = time.perf_counter(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter(), state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._begin[1]:
            # An evaluation before the first step does not count.
            self._begin = time.perf_counter(), state.global_step

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        # TRL logs None where every reward function abstained.
        numbers = {key: value for key, value in (logs or {}).items() if value is not None}
        if "reward" in (logs or {}):
            line = f"step {state.global_step}/{state.max_steps}: {health(numbers)}, {self._pace(state)}"
        elif "eval_reward" in (logs or {}):
            shown = [f"{word} {numbers[key]:.2f}" for key, word in _EVALUATION.items() if key in numbers]
            line = f"after step {state.global_step}: {', '.join(shown)}"
        else:
            return
        self.console.print(line, highlight=False, soft_wrap=True)

    def _pace(self, state: Any) -> str:
        begin, first = self._begin
        each = (time.perf_counter() - begin) / max(1, state.global_step - first)
        left = timedelta(seconds=round(each * (state.max_steps - state.global_step)))
        return f"{each:.{2 if each < 1 else 1}f} s a step, {left} left"
