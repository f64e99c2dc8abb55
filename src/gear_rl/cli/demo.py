"""``gear demo``: a small language model learns on this machine."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import out_console, show_log, user_errors
from gear_rl.errors import InputError

if TYPE_CHECKING:  # they import torch
    from gear_rl.cli.progress import ProgressLine
    from gear_rl.lab.demo import Demo

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
    from gear_rl.lab.demo import checked_demo, early_records, run_demo
    from gear_rl.view.terminal import choose, rollout_panel

    show_log()
    checked = checked_demo(chosen, task=task, tier=tier, seed=seed, steps=steps, n_eval=n_eval)
    summary = run_demo(checked, out, _TerminalProgress(out_console))
    out_console.print(rollout_panel(choose(early_records(out / "records.jsonl", checked.steps))))
    out_console.print(_table(summary))
    out_console.print(f"wrote {out}/summary.json, records.jsonl and curves.png")


@dataclass(frozen=True, slots=True)
class _TerminalProgress:
    """A head line, a spinner for each evaluation, and the progress line of the training."""

    console: Console

    def begin(self, demo: "Demo") -> None:
        """Say what is about to run."""
        self.console.print(
            f"[bold]gear demo[/]: {demo.task} ({demo.tier}), credit [bold]{demo.method.name}[/], seed "
            f"{demo.seed}, {demo.steps} steps of {demo.rollouts_per_step} completions, {demo.threads} "
            f"thread{'s' if demo.threads > 1 else ''}"
        )

    def working(self, what: str) -> AbstractContextManager[Any]:
        """A spinner."""
        return self.console.status(what)

    def training(self) -> "ProgressLine":
        """The bar."""
        from gear_rl.cli.progress import ProgressLine

        return ProgressLine(self.console)


def _table(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['n_eval']} held-out problems, sampled at temperature 1")
    for column in ("method", "seed", "steps", "before", "after", "gain", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    numbers = (f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}", f"{summary['seconds']:.0f}")
    table.add_row(summary["method"], str(summary["seed"]), str(summary["steps"]), *numbers)
    return table
