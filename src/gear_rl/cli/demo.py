"""``gear demo``: a small language model learns on this machine."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.table import Table

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import out_console, show_log, user_errors
from gear_rl.errors import InputError
from gear_rl.files import replace_file

if TYPE_CHECKING:  # it imports torch
    from gear_rl.cli.progress import ProgressLine

_TASKS = " or ".join(f"{task.name} ({task.summary})" for task in all_tasks())


@user_errors
def demo(
    context: typer.Context,
    credit: Annotated[
        str, typer.Option(help="A method of `gear methods`, or package.module:object.")
    ] = "gear",
    task: Annotated[str, typer.Option(help=f"What to learn: {_TASKS}.")] = DEFAULT_TASK,
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the training run.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps; by default the tier's own budget.")
    ] = None,
    n_eval: Annotated[int, typer.Option(help="Held-out problems before and after.")] = 512,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, records.jsonl and curves.png.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Watch a small language model learn on this machine, CPU included, in a few minutes.

    Settings of the method may follow, as in --credit.alpha 0.5.
    """
    from gear_rl.runs.config import load_config, parse_overrides

    for key, _ in parse_overrides(context.args):
        if not key.startswith("credit."):
            raise InputError(f"--{key}: no such option; see `gear demo --help`")
    named = ["--model", "arena", "--dataset", "arena", "--reward", "arena", "--credit", credit]
    chosen = load_config(None, [*named, *context.args]).credit
    show_log()
    _run(chosen, out, out_console, task=task, tier=tier, seed=seed, steps=steps, n_eval=n_eval)


def _run(
    credit: Any,
    out: Path,
    console: Console,
    *,
    task: str,
    tier: str,
    seed: int,
    steps: int | None,
    n_eval: int,
) -> None:
    """Train, evaluate before and after, and show it; without ``steps`` with the tier's own budget.

    ``out`` gets ``summary.json``, ``records.jsonl`` and ``curves.png``; what an earlier demo left there under
    these names is replaced.
    """
    from gear_rl.cli.progress import ProgressLine
    from gear_rl.records import read_records
    from gear_rl.runs.arena import accuracies, arena_config, task_of
    from gear_rl.runs.config import build_method
    from gear_rl.runs.machine import use_few_threads
    from gear_rl.runs.trainer import make_trainer
    from gear_rl.versions import versions
    from gear_rl.view.curves import save_curves
    from gear_rl.view.terminal import choose, rollout_panel

    arena = task_of(task, tier)
    budget = arena.budgets[tier]
    if not 1 <= n_eval <= len(arena.held_out):
        number = len(arena.held_out)
        raise InputError(f"--n-eval: {n_eval} is not possible; there are {number} held-out problems")
    if steps is not None and steps < 1:
        raise InputError(f"--steps: {steps} is no training; give 1 or more")
    steps = budget.steps if steps is None else steps
    method, threads = build_method(credit), use_few_threads()
    begin = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    records = out / "records.jsonl"
    records.unlink(missing_ok=True)
    problems = arena.rows(tier, num=n_eval, first_seed=arena.held_out.start)
    # TRL wants a folder; nothing of it is kept.
    with tempfile.TemporaryDirectory(prefix="gear-demo-") as scratch:
        trainer = make_trainer(
            arena_config(
                arena.name,
                tier,
                credit,
                seed=seed,
                steps=steps,
                output_dir=scratch,
                per_device_eval_batch_size=128,
                record_file=str(records.resolve()),
            )
        )

        def held_out(count: int) -> float:
            return accuracies(arena, trainer, problems[:count], seed=seed)[0]

        console.print(
            f"[bold]gear demo[/]: {arena.name} ({tier}), credit [bold]{method.name}[/], seed {seed}, {steps} "
            f"steps of {budget.rollouts_per_step} completions, {threads} thread{'s' if threads > 1 else ''}"
        )
        with console.status(f"solving {n_eval} held-out problems before training ..."):
            before = held_out(n_eval)
        with ProgressLine(console) as line:
            line.note(accuracy=before)
            trainer.add_callback(line)
            curve = _held_out_curve(held_out, line, every=max(1, steps // 6), count=min(128, n_eval))
            trainer.add_callback(curve)
            training = time.perf_counter()
            trainer.train()
        seconds = time.perf_counter() - training
        with console.status(f"solving {n_eval} held-out problems after training ..."):
            after = held_out(n_eval)
    history = [*trainer.state.log_history]
    summary: dict[str, Any] = {
        "task": arena.name,
        "tier": tier,
        "method": method.name,
        "credit": repr(method),
        "steps": steps,
        "seed": seed,
        "accuracy_before": round(before, 4),
        "accuracy_after": round(after, 4),
        "n_eval": n_eval,
        "held_out": curve.points,
        "held_out_sha256": arena.fingerprint(tier, n_eval),
        "seconds": round(time.perf_counter() - begin, 1),
        "seconds_training": round(seconds, 1),
        "seconds_credit": round(sum(entry.get("gear/credit_seconds", 0.0) for entry in history), 1),
        "threads": threads,
        "versions": versions(),
    }
    title = f"{arena.name}/{tier}, {method.name}"
    save_curves(history, out / "curves.png", {"before": before, "after": after}, title=title)
    replace_file(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    seen = list(read_records(records))
    early = [record for record in seen if record.step <= steps // 4]  # later the student hardly errs
    console.print(rollout_panel(choose(early or seen)))
    console.print(_table(summary))
    console.print(f"wrote {out}/summary.json, records.jsonl and curves.png")


def _held_out_curve(held_out: Callable[[int], float], line: "ProgressLine", every: int, count: int) -> Any:
    """A trainer's callback: a quick held-out accuracy now and then, for the line and the curve."""
    from transformers.trainer_callback import TrainerCallback

    class Curve(TrainerCallback):
        points: ClassVar[list[dict[str, float]]] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % every == 0 and state.global_step < state.max_steps:
                value = held_out(count)
                self.points.append({"step": state.global_step, "accuracy": round(value, 4), "n": count})
                line.note(accuracy=value)

    return Curve()


def _table(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['n_eval']} held-out problems, sampled at temperature 1")
    for column in ("method", "seed", "steps", "before", "after", "gain", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    numbers = (f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}", f"{summary['seconds']:.0f}")
    table.add_row(summary["method"], str(summary["seed"]), str(summary["steps"]), *numbers)
    return table
