"""How ``gear score`` looks in a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gear_rl.cli.console import Pace
from gear_rl.lab.score import title_of

_ROLES = ("method", "floor", "control", "ceiling")
"""The order of the rows."""


@contextmanager
def scoring_bar(console: Console, what: str = "scoring ") -> Generator[Callable[[str, float, int], None]]:
    """A bar in a terminal, elsewhere a line now and then.

    Gives what moves it: a name (of a method), the problems that are done, and all of them.
    """
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        work, pace = bar.add_task(what), Pace(console)

        def advance(name: str, done: float, total: int) -> None:
            bar.update(work, description=f"{what}{name}", completed=done, total=total)
            pace(f"{what}{name}: {done:g} of {total}")

        yield advance


def score_table(document: dict[str, Any]) -> Table:
    """The numbers, for the terminal: what they are compared with below the methods."""
    kind = "marked" if "data" in document else "planted"
    table = Table(title=f"{escape(title_of(document))}: {document['n']} {kind} faults")
    columns = ["", "AUC", "95 %", "among decisions", "share on the fault", "lift", "rank", "nearest onset"]
    if any(row["n"] < document["n"] for row in document["methods"].values()):
        columns.append("n")  # some say nothing of a method
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "95 %") else "right")
    last = None
    for name, row in sorted(document["methods"].items(), key=lambda item: _ROLES.index(item[1]["role"])):
        if last is not None and row["role"] != last:
            table.add_section()
        last = row["role"]
        role = "" if row["role"] == "method" else f" ({row['role']})"
        span = row["auc_interval"]
        cells = [
            f"{escape(name)}{role}",
            _number(row["auc"], 3),
            "-" if span is None else " to ".join(_number(end, 3) for end in span),
            _number(row["auc_choices"], 3),
            _number(row["share"], 3),
            *(_number(row[key], 1) for key in ("lift", "rank", "distance")),
            str(row["n"]),
        ]
        table.add_row(*cells[: len(columns)])
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
