"""How ``gear demo`` looks in a terminal."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gear_rl.cli.progress import ProgressLine
from gear_rl.lab.demo import Demo, early_records, run_demo
from gear_rl.view.terminal import choose, rollout_panel


@dataclass(frozen=True, slots=True)
class _TerminalProgress:
    """A head line, a spinner for each evaluation, and the progress line of the training."""

    console: Console

    def begin(self, demo: Demo) -> None:
        """Say what is about to run."""
        self.console.print(
            f"[bold]gear demo[/]: {demo.task} ({demo.tier}), credit [bold]{demo.method.name}[/], seed "
            f"{demo.seed}, {demo.steps} steps of {demo.rollouts_per_step} completions, {demo.threads} "
            f"thread{'s' if demo.threads > 1 else ''}"
        )

    def working(self, what: str) -> AbstractContextManager[Any]:
        """A spinner."""
        return self.console.status(what)

    def training(self) -> ProgressLine:
        """The bar."""
        return ProgressLine(self.console)


def show_demo(demo: Demo, out: Path, console: Console) -> None:
    """Run the demo, and print one rollout of its first steps and the table."""
    summary = run_demo(demo, out, _TerminalProgress(console))
    console.print(rollout_panel(choose(early_records(out / "records.jsonl", demo.steps))))
    console.print(_table(summary))
    console.print(f"wrote {out}/summary.json, records.jsonl and curves.png")


def _table(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['n_eval']} held-out problems, sampled at temperature 1")
    for column in ("method", "seed", "steps", "before", "after", "gain", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    numbers = (f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}", f"{summary['seconds']:.0f}")
    table.add_row(summary["method"], str(summary["seed"]), str(summary["steps"]), *numbers)
    return table
