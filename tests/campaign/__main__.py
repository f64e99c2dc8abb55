"""``make campaign``: what machines and people do to a run, many times over, as a table and as JSON.

Not a part of ``make test``: it takes a good part of an hour. ``--kills 4 --fuzz 1000`` is a short one.
"""

import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from campaign import corruption as damage
from campaign import fuzz as fuzzing
from campaign import kills as killing
from gear_rl.files import replace_file
from gear_rl.runs.versions import machine
from gear_rl.versions import versions

console = Console(stderr=True)
Part = Callable[[Path, Callable[[int], None]], dict[str, Any]]


def campaign(
    kills: Annotated[int, typer.Option(help="Runs that are killed and resumed.")] = 100,
    fuzz: Annotated[int, typer.Option(help="Fuzzed inputs.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only this part (may be repeated).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here.")] = None,
) -> None:
    """Kill, corrupt, and fuzz; exit code 1 where something was lost or changed silently."""
    parts: dict[str, tuple[int | None, Part]] = {
        "writers": (1, lambda folder, say: killing.writers(folder)),
        "corruption": (None, lambda folder, say: damage.corruption(folder, seed, say)),
        "kills": (kills, lambda folder, say: killing.kills(folder, kills, seed, say)),
        "fuzz": (None, lambda folder, say: _fuzzed(fuzz, seed)),
    }
    for name in only or ():
        if name not in parts:
            raise typer.BadParameter(
                f"{name!r} is no part; choose from {', '.join(parts)}", param_hint="--only"
            )
    logging.getLogger("gear_rl").setLevel(logging.ERROR)  # every damaged checkpoint would be said
    found: dict[str, Any] = {"command": f"make campaign ARGS='--kills {kills} --fuzz {fuzz} --seed {seed}'"}
    with tempfile.TemporaryDirectory(prefix="gear-campaign-") as name, Progress(console=console) as bar:
        for title in only or parts:
            total, run = parts[title]
            task = bar.add_task(title, total=total)
            folder = Path(name) / title
            folder.mkdir()
            found[title] = run(folder, lambda done, task=task: bar.update(task, completed=done))
            bar.update(task, total=1, completed=1)
    found |= {"machine": machine(), "versions": versions()}
    table, faults = Table("part", "outcome", "times"), list[str]()
    for title in only or parts:
        for outcome, times in found[title]["outcomes"].items():
            table.add_row(title, outcome, str(times))
        faults += found[title]["faults"]
    Console().print(table)
    if out is not None:
        replace_file(out, (json.dumps(found, indent=1) + "\n").encode())
    for fault in faults:
        console.print(fault, markup=False, highlight=False)
    raise typer.Exit(1 if faults else 0)


def _fuzzed(inputs: int, seed: int) -> dict[str, Any]:
    """The fuzzing, in the words of the other parts."""
    found = fuzzing.fuzz(inputs, seed)
    outcomes = {
        f"{kind}: {what.replace('_', ' ')}": row[what]
        for kind, row in found["kinds"].items()
        for what in ("kept", "refused", *_FAULTS)
    }
    faults = [f"{kind}: {example}" for kind, row in found["kinds"].items() for example in row["examples"]]
    faults += [
        f"{kind}: {row[what]} {what}" for kind, row in found["kinds"].items() for what in _FAULTS if row[what]
    ]
    return {"n": found["total"]["inputs"], "outcomes": outcomes, "faults": faults}


_FAULTS = ("tracebacks", "silent_changes", "wrongly_refused")

if __name__ == "__main__":
    typer.run(campaign)
