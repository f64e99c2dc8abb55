"""``make campaign``: kill, corrupt and look for leaks, many times over; writes a table and JSON.

It takes a good part of an hour; ``--kills 4 --rollouts 1000`` is a short one. A part is written as soon as it is
done; with ``--only`` the other parts of the file stay as they are.
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from campaign import canary as leaking
from campaign import corruption as damage
from campaign import kills as killing
from campaign.page import renewed
from gear_rl.files import replace_file
from gear_rl.runs.machine import machine
from gear_rl.versions import versions

console = Console(stderr=True)
Part = Callable[[Path, Callable[[int], None]], dict[str, Any]]


def campaign(
    kills: Annotated[int, typer.Option(help="Runs that are killed and resumed.")] = 100,
    rollouts: Annotated[int, typer.Option(help="Rollouts beside a privileged context.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only this part (may be repeated).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, part by part.")] = None,
    page: Annotated[Path | None, typer.Option(help="Renew the table of this page.")] = None,
) -> None:
    """Kill, corrupt, and look for leaks; exit code 1 where something was lost, changed or leaked."""
    early = -(-kills // 10)
    parts: dict[str, tuple[int | None, Part]] = {
        "writers": (1, lambda folder, say: killing.writers(folder)),
        "corruption": (None, lambda folder, say: damage.corruption(folder, seed, say)),
        "kills": (kills, lambda folder, say: killing.kills(folder, kills, seed, say)),
        "early": (early, lambda folder, say: killing.early_kills(folder, early, seed, say)),
        "canary": (rollouts, lambda folder, say: leaking.canary(folder, rollouts, seed, say)),
    }
    for name in only or ():
        if name not in parts:
            raise typer.BadParameter(
                f"{name!r} is no part; choose from {', '.join(parts)}", param_hint="--only"
            )
    logging.getLogger("gear_rl").setLevel(logging.ERROR)  # every damaged checkpoint would be said
    found: dict[str, Any] = json.loads(out.read_text()) if out is not None and out.exists() else {}
    faults = list[str]()
    with tempfile.TemporaryDirectory(prefix="gear-campaign-") as name, Progress(console=console) as bar:
        for title in only or parts:
            total, run = parts[title]
            task = bar.add_task(title, total=total)
            folder = Path(name) / title
            folder.mkdir()
            begin = time.monotonic()
            part = run(folder, lambda done, task=task: bar.update(task, completed=done))
            part |= {"seconds": round(time.monotonic() - begin), "machine": machine(), "versions": versions()}
            bar.update(task, total=1, completed=1)
            faults += part["faults"]
            found = {key: part if key == title else found[key] for key in parts if key in {title, *found}}
            if out is not None:
                replace_file(out, (json.dumps(found, indent=1) + "\n").encode())
    table = Table("part", "outcome", "times")
    for title in only or parts:
        for outcome, times in found[title]["outcomes"].items():
            table.add_row(title, outcome, str(times))
    Console().print(table)
    if page is not None:
        replace_file(page, renewed(page.read_text("utf-8"), found).encode())
    for fault in faults:
        console.print(fault, markup=False, highlight=False)
    raise typer.Exit(1 if faults else 0)


if __name__ == "__main__":
    typer.run(campaign)
