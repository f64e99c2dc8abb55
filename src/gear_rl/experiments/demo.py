"""``gear demo``: a small language model learns, on a CPU, in minutes, with credit from any method.

The real thing in small: the arena's model, TRL's trainer, held-out problems before and after.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers.trainer_callback import TrainerCallback

from gear_rl.cli.progress import ProgressLine, replace_printers
from gear_rl.errors import InputError
from gear_rl.files import replace_file
from gear_rl.records import read_records
from gear_rl.runs.arena import accuracies, arena_config, task_of
from gear_rl.runs.config import build_method
from gear_rl.runs.trainer import make_trainer, use_few_threads
from gear_rl.runs.versions import versions

EVAL_BATCH = 128
"""Held-out problems that are solved at a time."""


def demo(
    *,
    credit: str | dict[str, Any],
    task: str,
    tier: str,
    seed: int,
    steps: int | None,
    n_eval: int,
    out: Path,
    console: Console,
) -> dict[str, Any]:
    """Train, evaluate before and after, print the table and one rollout, write ``out``; returns the summary.

    ``out`` gets ``summary.json``, ``records.jsonl`` and ``curves.png``; what an earlier demo left there under
    these names is replaced. Raises ``InputError`` for an unknown task, tier or method.
    """
    from gear_rl.view.curves import save_curves
    from gear_rl.view.terminal import choose, rollout_panel

    chosen = task_of(task, tier)
    if not 1 <= n_eval <= len(chosen.held_out):
        number = len(chosen.held_out)
        raise InputError(f"--n-eval: {n_eval} is not possible; there are {number} held-out problems")
    if steps is not None and steps < 1:
        raise InputError(f"--steps: {steps} is no training; give 1 or more")
    method = build_method(credit)
    begin = time.perf_counter()
    threads = use_few_threads()
    budget = chosen.demos[tier]
    steps = budget.steps if steps is None else steps
    out.mkdir(parents=True, exist_ok=True)
    records = out / "records.jsonl"
    records.unlink(missing_ok=True)

    scratch = tempfile.TemporaryDirectory(prefix="gear-demo-")  # TRL wants a folder; nothing of it is kept
    trainer = make_trainer(
        arena_config(
            task,
            tier,
            credit,
            seed=seed,
            steps=steps,
            output_dir=scratch.name,
            per_device_eval_batch_size=EVAL_BATCH,
            record_file=str(records),
        )
    )
    problems = chosen.rows(tier, num=n_eval, first_seed=chosen.held_out.start)

    def held_out(count: int) -> float:
        return accuracies(chosen, trainer, problems[:count], seed=seed)[0]

    console.print(
        f"[bold]gear demo[/]: {task} ({tier}), credit [bold]{method.name}[/], seed {seed}, {steps} steps of "
        f"{budget.rollouts_per_step} completions, {threads} thread{'s' if threads > 1 else ''}"
    )
    with console.status(f"solving {n_eval} held-out problems before training ..."):
        before = held_out(n_eval)
    line = ProgressLine(console)
    line.note(accuracy=before)
    curve = _HeldOut(held_out, line, every=max(1, steps // 6), count=min(128, n_eval))
    replace_printers(trainer, line)
    trainer.add_callback(curve)
    training = time.perf_counter()
    try:
        trainer.train()
    finally:
        line.close()
    training = time.perf_counter() - training
    with console.status(f"solving {n_eval} held-out problems after training ..."):
        after = held_out(n_eval)

    summary = {
        "task": task,
        "tier": tier,
        "method": method.name,
        "credit": repr(method),
        "steps": steps,
        "seed": seed,
        "accuracy_before": round(before, 4),
        "accuracy_after": round(after, 4),
        "n_eval": n_eval,
        "held_out": curve.points,
        "held_out_sha256": chosen.fingerprint(tier, n_eval),
        "seconds": round(time.perf_counter() - begin, 1),
        "seconds_training": round(training, 1),
        "seconds_credit": round(sum(h.get("gear/credit_seconds", 0.0) for h in trainer.state.log_history), 1),
        "threads": threads,
        "versions": versions(),
    }
    history = [*trainer.state.log_history]
    save_curves(
        history, out / "curves.png", {"before": before, "after": after}, title=f"{task}/{tier}, {method.name}"
    )
    replace_file(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    # From the first steps: later the student hardly errs, and there is less to see.
    scratch.cleanup()
    early = [record for record in read_records(records) if record.step <= steps // 4]
    console.print(rollout_panel(choose(early or list(read_records(records)))))
    console.print(_table(summary))
    console.print(f"wrote {out}/summary.json, records.jsonl and curves.png")
    return summary


class _HeldOut(TrainerCallback):
    """A quick held-out accuracy now and then, for the line and the curve."""

    def __init__(self, held_out: Any, line: ProgressLine, every: int, count: int) -> None:
        self.held_out, self.line, self.every, self.count = held_out, line, every, count
        self.points: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 and state.global_step < state.max_steps:
            value = self.held_out(self.count)
            self.points.append({"step": state.global_step, "accuracy": round(value, 4), "n": self.count})
            self.line.note(accuracy=value)


def _table(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['n_eval']} held-out problems, sampled at temperature 1")
    for column in ("method", "seed", "steps", "before", "after", "gain", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    numbers = (f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}", f"{summary['seconds']:.0f}")
    table.add_row(summary["method"], str(summary["seed"]), str(summary["steps"]), *numbers)
    return table
