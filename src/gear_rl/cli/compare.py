"""How ``gear compare`` looks in a terminal."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gear_rl.lab.compare import Plan, Tuned, run_plan


def run_plan_with_bar(
    plan: Plan, folder: Path, *, jobs: int, console: Console
) -> tuple[list[dict[str, Any]], dict[str, Tuned]]:
    """The cells of a comparison, with a bar in a terminal; elsewhere one line for each that ends."""
    columns = (*Progress.get_default_columns()[:2], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        work = bar.add_task("runs", total=None)
        done = 0

        def expect(todo: int, total: int) -> None:
            if done == 0 and todo < total:
                console.print(f"{total - todo} of {total} runs are there already", highlight=False)
            bar.update(work, total=done + todo, description=f"{done + todo} runs")

        def each(cell: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            bar.advance(work)
            _print_cell(cell, console)

        return run_plan(plan, folder, jobs=jobs, each=each, expect=expect)


def _print_cell(cell: dict[str, Any], console: Console) -> None:
    error = cell.get("error")
    if console.is_terminal and error is None:
        return
    result = f"{cell['accuracy_after']:.3f}" if error is None else f"FAILED: {error}"
    name = f"{cell['method']}, rate {cell['rate']:g}, seed {cell['seed']}"
    console.print(f"{name}: {result}", highlight=False, markup=False)


def verdict_table(comparison: dict[str, Any]) -> Table:
    """The verdicts, for the terminal."""
    one, settings = comparison["comparisons"][0], comparison["settings"]
    table = Table(
        title=f"{settings['place']} ({settings['use']}): {one['steps']} steps of {settings['rollouts']} "
        f"rollouts, {one['n_eval']} held-out problems, {one['samples']} sampled answers each"
    )
    told = one["ceiling"] is not None
    for column in (
        "method",
        "rate",
        *(("share of the oracle's gain",) if told else ()),
        "after",
        "lost",
        "difference",
        f"{one['level']:.0%} interval",
        "verdict",
    ):
        table.add_column(
            column, justify="right" if column in ("rate", "after", "lost", "difference") else "left"
        )
    for row in one["verdicts"]:
        gap, ends = row["difference"], row["difference_interval"]
        share, around = row["share"], row["share_interval"]
        table.add_row(
            row["method"],
            "-" if row["rate"] is None else f"{row['rate']:g}",
            *(
                ("" if share is None else f"{share:.2f} ({around[0]:.2f} to {around[1]:.2f})",)
                if told
                else ()
            ),
            "-" if row["mean"] is None else f"{row['mean']:.3f}",
            str(len(row["lost_seeds"])),
            "" if gap is None else f"{gap:+.3f}",
            f"{ends[0]:+.3f} to {ends[1]:+.3f}" if ends else "" if gap is None else "too few seeds",
            row["words"],
        )
    return table
