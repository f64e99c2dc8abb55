"""A small language model learns, on a CPU, in minutes, with credit from any method.

The real thing in small: the arena's model, TRL's trainer, held-out problems before and after.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from transformers.trainer_callback import TrainerCallback

from gear_rl.arena.task import Task
from gear_rl.errors import InputError
from gear_rl.files import replace_file
from gear_rl.records import Record, read_records
from gear_rl.runs.arena import accuracies, arena_config, task_of
from gear_rl.runs.config import build_method
from gear_rl.runs.machine import use_few_threads
from gear_rl.runs.trainer import make_trainer
from gear_rl.types import CreditAssigner
from gear_rl.versions import versions

_EVAL_BATCH = 128
"""Held-out problems that are solved at a time."""


@runtime_checkable
class DemoProgress(Protocol):
    """How a demo is shown while it runs.

    >>> class Silent:
    ...     begin = working = training = lambda self, *facts: nullcontext()
    >>> isinstance(Silent(), DemoProgress)
    True
    """

    def begin(self, demo: "Demo") -> None:
        """Everything is checked and loaded; evaluation and training come next."""
        ...

    def working(self, what: str) -> AbstractContextManager[Any]:
        """Open while something takes long that has no bar of its own."""
        ...

    def training(self) -> AbstractContextManager[Any]:
        """Open while the model trains; gives a trainer's callback with ``note(accuracy=...)``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One run on a task of the arena, checked: a task, a tier and a method that exist, and possible numbers."""

    task: str
    tier: str
    credit: str | dict[str, Any]
    seed: int
    steps: int
    n_eval: int
    threads: int
    arena: Task
    method: CreditAssigner

    @property
    def rollouts_per_step(self) -> int:
        """Completions that a step trains on."""
        return self.arena.budgets[self.tier].rollouts_per_step


def checked_demo(
    credit: str | dict[str, Any], *, task: str, tier: str, seed: int, steps: int | None, n_eval: int
) -> Demo:
    """The demo of these settings; without ``steps`` it has the tier's own budget.

    Raises ``InputError`` for an unknown task, tier or method, and for numbers that are not possible.

    >>> checked_demo("gear", task="chain", tier="easy", seed=0, steps=0, n_eval=64)
    Traceback (most recent call last):
    gear_rl.errors.InputError: --steps: 0 is no training; give 1 or more
    """
    arena = task_of(task, tier)
    if not 1 <= n_eval <= len(arena.held_out):
        number = len(arena.held_out)
        raise InputError(f"--n-eval: {n_eval} is not possible; there are {number} held-out problems")
    if steps is not None and steps < 1:
        raise InputError(f"--steps: {steps} is no training; give 1 or more")
    return Demo(
        task=arena.name,
        tier=tier,
        credit=credit,
        seed=seed,
        steps=arena.budgets[tier].steps if steps is None else steps,
        n_eval=n_eval,
        arena=arena,
        method=build_method(credit),
        threads=use_few_threads(),
    )


def run_demo(demo: Demo, out: Path, progress: DemoProgress) -> dict[str, Any]:
    """Train, evaluate before and after, write ``out``; returns the summary.

    ``out`` gets ``summary.json``, ``records.jsonl`` and ``curves.png``; what an earlier demo left there under
    these names is replaced.
    """
    from gear_rl.view.curves import save_curves

    begin = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    records = out / "records.jsonl"
    records.unlink(missing_ok=True)
    # TRL wants a folder; nothing of it is kept.
    with tempfile.TemporaryDirectory(prefix="gear-demo-") as scratch:
        trainer = _trainer(demo, scratch, records)
        progress.begin(demo)
        measured = _trained(demo, trainer, progress)
    history = [*trainer.state.log_history]
    summary = _summary(demo, measured, history, time.perf_counter() - begin)
    before, after = measured["before"], measured["after"]
    title = f"{demo.task}/{demo.tier}, {demo.method.name}"
    save_curves(history, out / "curves.png", {"before": before, "after": after}, title=title)
    replace_file(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def early_records(file: Path, steps: int) -> list[Record]:
    """The records of the first quarter of the steps, else all: later the student hardly errs."""
    records = list(read_records(file))
    return [record for record in records if record.step <= steps // 4] or records


def _trainer(demo: Demo, folder: str, records: Path) -> Any:
    return make_trainer(
        arena_config(
            demo.task,
            demo.tier,
            demo.credit,
            seed=demo.seed,
            steps=demo.steps,
            output_dir=folder,
            per_device_eval_batch_size=_EVAL_BATCH,
            record_file=str(records.resolve()),
        )
    )


def _trained(demo: Demo, trainer: Any, progress: DemoProgress) -> dict[str, Any]:
    """Accuracies before, on the way and after, and the seconds of the training between them."""
    problems = demo.arena.rows(demo.tier, num=demo.n_eval, first_seed=demo.arena.held_out.start)

    def held_out(count: int) -> float:
        return accuracies(demo.arena, trainer, problems[:count], seed=demo.seed)[0]

    with progress.working(f"solving {demo.n_eval} held-out problems before training ..."):
        before = held_out(demo.n_eval)
    with progress.training() as line:
        line.note(accuracy=before)
        curve = _HeldOut(held_out, line, every=max(1, demo.steps // 6), count=min(128, demo.n_eval))
        trainer.add_callback(line)
        trainer.add_callback(curve)
        begin = time.perf_counter()
        trainer.train()
    seconds = time.perf_counter() - begin
    with progress.working(f"solving {demo.n_eval} held-out problems after training ..."):
        after = held_out(demo.n_eval)
    return {"before": before, "after": after, "held_out": curve.points, "seconds": seconds}


class _HeldOut(TrainerCallback):
    """A quick held-out accuracy now and then, for the line and the curve."""

    def __init__(self, held_out: Callable[[int], float], line: Any, every: int, count: int) -> None:
        self.held_out, self.line, self.every, self.count = held_out, line, every, count
        self.points: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 and state.global_step < state.max_steps:
            value = self.held_out(self.count)
            self.points.append({"step": state.global_step, "accuracy": round(value, 4), "n": self.count})
            self.line.note(accuracy=value)


def _summary(
    demo: Demo, measured: dict[str, Any], history: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    return {
        "task": demo.task,
        "tier": demo.tier,
        "method": demo.method.name,
        "credit": repr(demo.method),
        "steps": demo.steps,
        "seed": demo.seed,
        "accuracy_before": round(measured["before"], 4),
        "accuracy_after": round(measured["after"], 4),
        "n_eval": demo.n_eval,
        "held_out": measured["held_out"],
        "held_out_sha256": demo.arena.fingerprint(demo.tier, demo.n_eval),
        "seconds": round(seconds, 1),
        "seconds_training": round(measured["seconds"], 1),
        "seconds_credit": round(sum(entry.get("gear/credit_seconds", 0.0) for entry in history), 1),
        "threads": demo.threads,
        "versions": versions(),
    }
