"""The runs of a comparison: what one is, the file of its numbers, and processes that run a few at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import gc
import json
import math
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import Any

from transformers.trainer_callback import TrainerCallback

from gear_rl.files import replace_file

_CURVES = {"reward": "reward", "entropy": "entropy", "length": "completions/mean_length"}
"""What of the trainer's log a cell keeps of each step, and its key there."""
_POINTS = 6
"""At most so many evaluations, the one after the last step among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a run is: two of the same spec have the same numbers on the same machine and versions."""

    name: str
    """The name it is compared under."""
    credit: dict[str, Any]
    task: str
    tier: str
    seed: int
    steps: int
    rollouts: int
    """Per step."""
    rate: float
    """Learning rate."""
    n_eval: int
    first: int
    """Seed of the first of its held-out problems."""
    samples: int
    """Answers to every held-out problem, before and after."""
    n_between: int
    """Held-out problems of the evaluations on the way."""
    engine: dict[str, Any]
    """Settings of the engine beside the tier's own, or the run's."""
    resolved: str
    """The method with all its settings, defaults included: with another default it is another run."""
    run: dict[str, Any] | None = None
    """The user's own run in place of a task and tier of the arena, which are then its dataset and model."""

    @property
    def file(self) -> str:
        """Its file's name: what a reader looks for, and a digest of all that it is."""
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)[:60]
        return f"{plain}-{self.rate:g}-{self.seed}-{digest(asdict(self))[:8]}.json"


def digest(content: Mapping[str, Any]) -> str:
    """The sha256 of what JSON makes of it.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    True
    """
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def finished(spec: Spec, folder: Path) -> dict[str, Any] | None:
    """The run's numbers, if they are in the folder; None also for a run that failed, which is run again."""
    try:
        row = json.loads((folder / spec.file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(row, dict) and row.get("spec") == json.loads(json.dumps(asdict(spec)))
    return row if same and row.get("error") is None else None


def failed(spec: Spec, error: str) -> dict[str, Any]:
    """A run without numbers."""
    names = ("task", "tier", "seed", "steps", "rate", "n_eval", "samples")
    return {
        "method": spec.name,
        **{name: getattr(spec, name) for name in names},
        "credit": "",
        "error": error,
        "spec": asdict(spec),
    }


def run_cells(
    specs: Sequence[Spec],
    folder: Path,
    *,
    jobs: int,
    each: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """The numbers of every run, in the order of the specs; what is finished in the folder is not run again.

    ``jobs`` processes run them; ``each`` gets every run as it ends. A process that dies takes its own run along
    and is replaced. When this is interrupted, or killed, the runs under way end too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes: more threads only wait for each other
    rows = [finished(spec, folder) for spec in specs]
    context = multiprocessing.get_context("spawn")
    # Its other end is here alone: closed, by us or by our death, it ends every process.
    alive, ours = context.Pipe(duplex=False)
    idle: SimpleQueue[ProcessPoolExecutor | None] = SimpleQueue()
    for _ in range(jobs):
        idle.put(None)

    def one(spec: Spec) -> dict[str, Any]:
        pool = idle.get() or ProcessPoolExecutor(1, context, _begin, (alive,))
        try:
            row = pool.submit(run_cell, spec, folder).result()
        except BrokenProcessPool as error:
            idle.put(None)
            return failed(spec, f"its process died: {error}")
        idle.put(pool)
        return row

    with ThreadPoolExecutor(jobs) as threads:
        try:
            futures = {threads.submit(one, specs[i]): i for i, row in enumerate(rows) if row is None}
            for future in as_completed(futures):
                rows[futures[future]] = future.result()
                each(future.result())
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            ours.close()
    return [row for row in rows if row is not None]


def _begin(alive: Any) -> None:
    """What a process does first: be silent, and end with the one that started it."""
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)

    def watch() -> None:
        try:
            alive.recv()
        except EOFError:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_cell(spec: Spec, folder: Path) -> dict[str, Any]:
    """Train, evaluate, write the file at once, and return what is in it. A failure is written too, not raised."""
    from gear_rl.versions import versions

    begin = time.perf_counter()
    row = failed(spec, "")
    try:
        row |= _trained(spec, folder) | {"error": None}
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row |= {"seconds": round(time.perf_counter() - begin, 1), "versions": versions()}
    replace_file(folder / spec.file, (json.dumps(row, indent=1) + "\n").encode())
    gc.collect()  # trainer and callbacks hold each other
    return row


def cell_trainer(spec: Spec, scratch: str) -> Any:
    """The trainer of a run, with the engine's settings that the spec has recorded."""
    from gear_rl.lab.oracle import Oracle, told
    from gear_rl.lab.own import run_config
    from gear_rl.runs.arena import arena_config, task_of
    from gear_rl.runs.trainer import make_trainer

    if spec.run is not None:
        config, truth_of = run_config(spec.run, spec.credit, spec.engine), None
        own = {"output_dir": scratch, "seed": spec.seed, "learning_rate": spec.rate, "max_steps": spec.steps}
        config.trainer |= own
    else:
        config = arena_config(
            spec.task,
            spec.tier,
            spec.credit,
            seed=spec.seed,
            steps=spec.steps,
            rollouts_per_step=spec.rollouts,
            learning_rate=spec.rate,
            output_dir=scratch,
            per_device_eval_batch_size=128,
            **spec.engine,
        )
        truth_of = task_of(spec.task, spec.tier).truth_of(spec.tier)
    trainer = make_trainer(config)
    if isinstance(trainer.credit, Oracle):
        trainer.credit = replace(trainer.credit, tell=told(trainer, truth_of))
    return trainer


def _trained(spec: Spec, folder: Path) -> dict[str, Any]:
    """Accuracies before, on the way and after, and curves of the training."""
    from gear_rl.lab.own import OwnTask
    from gear_rl.runs.arena import accuracies, task_of
    from gear_rl.runs.config import build_method
    from gear_rl.runs.machine import quiet_libraries, use_few_threads

    quiet_libraries()
    if spec.run is None:
        use_few_threads()
    with tempfile.TemporaryDirectory(prefix="gear-cell-") as scratch:
        trainer = cell_trainer(spec, scratch)
        task: Any = (
            task_of(spec.task, spec.tier) if spec.run is None else OwnTask(trainer, float(spec.run["right"]))
        )
        problems = task.rows(spec.tier, num=spec.n_eval, first_seed=spec.first)

        def measured(count: int | None = None, samples: int = 1) -> list[float]:
            return accuracies(task, trainer, problems[:count], seed=spec.seed, samples=samples)

        between = _Between(spec, measured)
        trainer.add_callback(between)
        shown = [json.dumps([row["prompt"], row.get("answer")], sort_keys=True) for row in problems]
        held_out = sha256("\n".join(shown).encode()).hexdigest()
        own = "" if spec.run is None else f"-{digest(spec.run)[:8]}"
        stem = f"before-{held_out[:16]}{own}-seed{spec.seed}-samples{spec.samples}"
        before = _once(folder / f"{stem}.json", lambda: measured(samples=spec.samples))
        trainer.train()
        after = measured(samples=spec.samples)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "credit": repr(build_method(spec.credit)),
        "accuracy_before": fmean(before),
        "accuracy_after": fmean(after),
        "accuracies_before": before,
        "accuracies_after": after,
        "held_out": between.points,
        "held_out_sha256": held_out,
        "curves": {name: [_finite(entry.get(key)) for entry in steps] for name, key in _CURVES.items()},
        "fallbacks": sum(entry.get("gear/fallbacks", 0.0) for entry in steps),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _once(file: Path, measure: Callable[[], list[float]]) -> list[float]:
    """The accuracies in the file; measured and written if there are none.

    Runs of one seed begin with the same weights and draw the same answers before the first step. Two that measure
    at once write the same.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))["accuracies"]
    except (FileNotFoundError, ValueError, LookupError, TypeError):  # none, or a damaged one
        shares = measure()
    replace_file(file, (json.dumps({"accuracies": shares}) + "\n").encode())
    return shares


class _Between(TrainerCallback):
    """Measures some of the held-out problems now and then, and keeps the points."""

    def __init__(self, spec: Spec, measured: Callable[[int], list[float]]) -> None:
        self.spec, self.measured = spec, measured
        self.points: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        every, count = -(-self.spec.steps // _POINTS), self.spec.n_between
        if state.global_step % every == 0 and state.global_step < state.max_steps and count:
            [value] = self.measured(count)
            self.points.append({"step": state.global_step, "accuracy": value, "n": count})
