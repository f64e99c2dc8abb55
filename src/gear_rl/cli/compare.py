"""How ``gear compare`` looks in a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gear_rl.experiments.cells import Spec, finished
from gear_rl.experiments.compare import run_cells


def run_cells_with_bar(
    specs: Sequence[Spec], folder: Path, *, jobs: int, console: Console
) -> list[dict[str, Any]]:
    """The cells of a comparison, with a bar in a terminal; elsewhere one line for each that ends."""
    todo = sum(finished(spec, folder) is None for spec in specs)
    if todo < len(specs):
        console.print(f"{len(specs) - todo} of {len(specs)} runs are there already", highlight=False)
    columns = (*Progress.get_default_columns()[:2], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        work = bar.add_task(f"{todo} runs", total=todo)

        def each(cell: dict[str, Any]) -> None:
            bar.advance(work)
            _print_cell(cell, console)

        return run_cells(specs, folder, jobs=jobs, each=each)


def _print_cell(cell: dict[str, Any], console: Console) -> None:
    error = cell.get("error")
    if console.is_terminal and error is None:
        return
    result = f"{cell['accuracy_after']:.3f}" if error is None else f"FAILED: {error}"
    console.print(f"{cell['method']}, seed {cell['seed']}: {result}", highlight=False, markup=False)


def verdict_table(comparison: dict[str, Any]) -> Table:
    """The verdicts, for the terminal."""
    one = comparison["comparisons"][0]
    table = Table(
        title=f"{one['task']}/{one['tier']}: {one['steps']} steps, {one['n_eval']} held-out problems, "
        f"{one['samples']} sampled answers each"
    )
    for column in ("method", "after", "difference", f"{one['level']:.0%} interval", "verdict"):
        table.add_column(column, justify="right" if column in ("after", "difference") else "left")
    for row in one["verdicts"]:
        gap, ends = row["difference"], row["difference_interval"]
        table.add_row(
            row["method"],
            "-" if row["mean"] is None else f"{row['mean']:.3f}",
            "" if gap is None else f"{gap:+.3f}",
            "" if ends is None else f"{ends[0]:+.3f} to {ends[1]:+.3f}",
            row["words"],
        )
    return table
