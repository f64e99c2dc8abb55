"""What a method costs, measured beside plain GRPO in one run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from benchmarks.results import Cells
from gear_rl.arena.task import DEFAULT_TASK
from gear_rl.errors import InputError
from gear_rl.runs.arena import arena_config
from gear_rl.runs.config import build_method
from gear_rl.runs.machine import use_few_threads
from gear_rl.runs.trainer import make_trainer
from gear_rl.traits import engine_settings_of
from gear_rl.versions import versions

BASE = "uniform"
"""Plain GRPO, which every other method is measured against."""


def bench_methods(
    names: Sequence[str],
    *,
    task: str = DEFAULT_TASK,
    tier: str = "default",
    steps: int = 4,
    repeats: int = 3,
    rollouts: int = 64,
    console: Console,
) -> dict[str, Any]:
    """Seconds per training step of each method over those of GRPO, with their spread over the repeats.

    Every repeat trains each method from the shipped checkpoint with the same seed, GRPO among them, in an order
    that is turned from repeat to repeat; the first step warms up and does not count. All runs are in one
    process, one after the other. A method runs with the settings of the engine that its paper has
    (``engine``). ``credit_share`` is the share of the time that is spent in the credit pass itself; what a
    distillation term adds to the update is in the ratio only.
    """
    if repeats < 1 or steps < 2:
        raise InputError(f"--steps {steps} --repeats {repeats}: give 2 steps or more, and 1 repeat or more")
    threads = use_few_threads()
    order = [BASE, *(name for name in names if name != BASE)]
    seconds: dict[str, list[float]] = {name: [] for name in order}
    credit: dict[str, list[float]] = {name: [] for name in order}
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        work = bar.add_task("measuring", total=repeats * len(order))
        for repeat in range(repeats):
            shift = repeat * len(order) // repeats
            for name in order[shift:] + order[:shift]:
                bar.update(work, description=f"measuring {name}")
                step, share = _steps_of(name, task, tier, steps, rollouts, seed=repeat)
                seconds[name].append(step)
                credit[name].append(share)
                bar.advance(work)
    rows: dict[str, Any] = {}
    for name in order:
        ratios = [own / base for own, base in zip(seconds[name], seconds[BASE], strict=True)]
        rows[name] = {
            "ratio": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
            "credit_share": round(statistics.median(credit[name]), 3),
            "seconds_per_step": round(statistics.median(seconds[name]), 4),
            "engine": engine_settings_of(build_method(name)),
        }
    return {
        "what": "seconds per training step over those of uniform (GRPO), median of the repeats",
        "task": task,
        "tier": tier,
        "steps": steps,
        "repeats": repeats,
        "rollouts_per_step": rollouts,
        "threads": threads,
        "methods": rows,
        "versions": versions(),
    }


def _steps_of(name: str, task: str, tier: str, steps: int, rollouts: int, seed: int) -> tuple[float, float]:
    """Mean seconds of a step after the first, and the share of them that the credit pass took."""
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as folder:
        trainer = make_trainer(
            arena_config(
                task,
                tier,
                name,
                seed=seed,
                steps=steps,
                output_dir=folder,
                rollouts_per_step=rollouts,
            )
        )
        for printer in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printer)
        clock = _Clock()
        trainer.add_callback(clock)
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "gear/credit_seconds" in entry]
    in_credit = sum(entry["gear/credit_seconds"] for entry in history[1:])
    counted = clock.seconds[1:]
    return sum(counted) / len(counted), in_credit / sum(counted)


class _Clock(TrainerCallback):
    """How long each step took, rollouts included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begin)


def methods_cells(result: Mapping[str, Any]) -> Cells:
    """The costs as a table."""
    rows: list[tuple[str, ...]] = []
    for name, row in result["methods"].items():
        ratios = (f"{row[key]:.2f}" for key in ("ratio", "least", "most"))
        rows.append((name, *ratios, f"{row['credit_share']:.0%}", f"{row['seconds_per_step']:.3f}"))
    title = f"{result['task']}/{result['tier']}, {result['rollouts_per_step']} rollouts a step"
    columns = ("method", "step / GRPO's", "least", "most", "credit pass", "seconds a step")
    return Cells(title, columns, rows, [])
