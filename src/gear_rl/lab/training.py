"""One cell of a comparison: a whole training run, written to one file.

As a program it is a worker: it reads specs, a line of JSON each, and says "done" after each.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import _thread
import gc
import json
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import Any, TextIO

from gear_rl.files import replace_file
from gear_rl.lab.spec import Spec, digest, failed, sealed, unsealed

_CURVES = {"reward": "reward", "entropy": "entropy", "length": "completions/mean_length"}
"""What of the trainer's log a cell keeps of each step, and its key there."""
_POINTS = 6
"""At most so many evaluations, the one after the last step among them."""


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
    replace_file(folder / spec.file, sealed(row))
    return row


def _once(file: Path, measure: Callable[[], list[float]]) -> list[float]:
    """The numbers in the file; measured and written if there are none.

    Runs of one seed begin with the same weights and draw the same answers before the first step. Two that measure
    at once write the same.
    """
    known = unsealed(file)
    if known is not None and all(math.isfinite(share) for share in known["accuracies"]):
        return known["accuracies"]
    shares = measure()
    replace_file(file, sealed({"accuracies": shares}))
    return shares


def cell_trainer(spec: Spec, scratch: str) -> Any:
    """The trainer of a cell, with the engine's settings that the spec has recorded."""
    from gear_rl.lab.oracle import told
    from gear_rl.lab.own import own_trainer
    from gear_rl.runs.arena import arena_config, task_of
    from gear_rl.runs.trainer import make_trainer

    if spec.run is not None:
        return own_trainer(spec.run, spec, scratch)
    trainer = make_trainer(
        arena_config(
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
    )
    if "true_advantage" in trainer.credit.needs:
        trainer.truth = told(task_of(spec.task, spec.tier), spec.tier, trainer)
    return trainer


def _trained(spec: Spec, folder: Path) -> dict[str, Any]:
    """The numbers of a cell: accuracies before, on the way and after, and curves of the training."""
    from gear_rl.lab.own import OwnTask
    from gear_rl.runs.arena import accuracies, task_of
    from gear_rl.runs.config import build_method
    from gear_rl.runs.machine import quiet_libraries, use_few_threads

    quiet_libraries()
    if spec.run is None:
        use_few_threads()
    with tempfile.TemporaryDirectory(prefix="gear-cell-") as scratch:
        trainer = cell_trainer(spec, scratch)
        task: Any = task_of(spec.task, spec.tier) if spec.run is None else OwnTask(trainer, spec.run)
        problems = task.rows(spec.tier, num=spec.n_eval, first_seed=spec.first)

        def measured(count: int | None = None, samples: int = 1) -> list[float]:
            return accuracies(task, trainer, problems[:count], seed=spec.seed, samples=samples)

        between = _between(spec, measured)
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
        "curves": {name: [entry.get(key) for entry in steps] for name, key in _CURVES.items()},
        "fallbacks": sum(entry.get("gear/fallbacks", 0.0) for entry in steps),
    }


def _between(spec: Spec, measured: Callable[[int], list[float]]) -> Any:
    """A trainer's callback that measures some of the held-out problems now and then, and keeps the points."""
    from transformers.trainer_callback import TrainerCallback

    every = -(-spec.steps // _POINTS)

    class Between(TrainerCallback):
        def __init__(self) -> None:
            self.points: list[dict[str, float]] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % every == 0 and state.global_step < state.max_steps and spec.n_between:
                [value] = measured(spec.n_between)
                self.points.append({"step": state.global_step, "accuracy": value, "n": spec.n_between})

    return Between()


def serve(folder: Path, answers: TextIO) -> None:
    """Run the specs that come in, one after the other, each as if it were alone.

    What a run leaves behind in a process (random states, caches) no other one reads: a trainer begins with its
    own seed. Many share the seconds that torch and its like take to load. Where the one who asks is gone, the
    run that is under way ends too.
    """
    # Whatever a shell made of it: in the background of a script SIGINT is ignored, and so would be ours.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    try:
        while (line := asked.get()) is not None:
            run_cell(Spec(**json.loads(line)), folder)
            gc.collect()  # trainer and callbacks hold each other
            print("done", file=answers, flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # what torch and its like would say while Python shuts down helps nobody


def _listen(asked: SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        asked.put(line)
    asked.put(None)
    _thread.interrupt_main()  # into a run: its scratch folder goes with it


if __name__ == "__main__":
    logging.getLogger("gear_rl").addHandler(logging.NullHandler())  # a cell says nothing but why it failed
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print as well
    serve(Path(sys.argv[1]), answers)
