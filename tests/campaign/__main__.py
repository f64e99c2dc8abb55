"""``make campaign``: kill and look for leaks, many times over; writes a table and JSON.

It takes a good part of an hour; ``--kills 4 --rollouts 1000`` is a short one. A part is written as soon as it is
done; with ``--only`` the other parts of the file stay as they are.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.results import machine
from campaign.canary import canary
from campaign.kills import kills, writers
from campaign.page import renewed
from gear_rl.files import replace_file
from gear_rl.versions import versions


def campaign(
    out: Annotated[Path, typer.Option(help="Write the JSON here, part by part.")],
    number: Annotated[int, typer.Option("--kills", help="Runs that are killed and resumed.")] = 100,
    rollouts: Annotated[int, typer.Option(help="Rollouts beside a privileged context.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only this part (may be repeated).")] = None,
    page: Annotated[Path | None, typer.Option(help="Renew the table of this page.")] = None,
) -> None:
    """Kill, and look for leaks; exit code 1 where something was lost, changed or leaked."""
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "writers": writers,
        "kills": lambda folder: kills(folder, number, seed),
        "early": lambda folder: kills(folder, -(-number // 10), seed, early=True),
        "canary": lambda folder: canary(folder, rollouts, seed),
    }
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    faults = list[str]()
    for title in only or parts:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gear-campaign-") as folder:
            part = parts[title](Path(folder))
        part |= {"seconds": round(time.monotonic() - begin), "machine": machine(), "versions": versions()}
        print(f"{title}: {part['outcomes']}", *part["faults"], sep="\n", flush=True)
        faults += part["faults"]
        found = {key: part if key == title else found[key] for key in parts if key in {title, *found}}
        replace_file(out, (json.dumps(found, indent=1) + "\n").encode())
    if page is not None:
        replace_file(page, renewed(page.read_text("utf-8"), found).encode())
    raise typer.Exit(1 if faults else 0)


if __name__ == "__main__":
    typer.run(campaign)
