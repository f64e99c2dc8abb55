"""A benchmark's result: measured with its command, machine and versions; shown as JSON, table or page."""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gear_rl.cli.console import command_line, error_console, out_console
from gear_rl.errors import input_errors
from gear_rl.files import replace_file
from gear_rl.runs.machine import processor

PROGRAM = "python -m benchmarks"
Out = Annotated[Path | None, typer.Option(help="Write the JSON to this file too.")]


class Cells(NamedTuple):
    """A table as text, with sentences ``below`` it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    below: list[str]

    def table(self) -> Group:
        """The table for a terminal."""
        table = Table()
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return Group(Text(self.title, style="bold"), table, *map(Text, self.below))

    def markdown(self, result: Mapping[str, Any]) -> str:
        """The table for a page, with the command, the machine and the versions of ``result``."""
        lines = ["| " + " | ".join(self.columns) + " |", "|---" + "|---:" * (len(self.columns) - 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        for sentence in self.below:
            lines += ["", sentence]
        versions = ", ".join(
            f"{name} {result['versions'][name]}" for name in ("torch", "trl", "transformers")
        )
        lines += ["", "```", result["command"], "```", "", f"On {result['machine']}; {versions}."]
        return f"{self.title}.\n\n" + "\n".join(lines) + "\n"


def measured(run: Callable[[Callable[[str], None]], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` measures on one thread, with the command, the machine and the versions.

    ``run`` gets a function that shows what is being measured. A ``ValueError`` becomes an ``InputError``.
    """
    # Before torch is imported: threads that wait must not burn the CPU seconds that are counted.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from gear_rl.versions import versions

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with input_errors(), error_console.status("measuring") as status:
            result = run(lambda name: status.update(f"measuring: {name}"))
    finally:
        torch.set_num_threads(before)
    return result | {"command": command_line(PROGRAM), "machine": machine(), "versions": versions()}


def machine() -> str:
    """A description of this machine, without its name.

    >>> "core" in machine()
    True
    """
    import torch

    facts = processor()
    units = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"} & {*facts.get("flags", "").split()}
    words = [facts.get("model name", platform.machine()), f"{os.cpu_count()} cores", *sorted(units)]
    if torch.cuda.is_available():
        words.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    return ", ".join([*words, platform.system()])


def deliver(
    result: dict[str, Any], cells_of: Callable[[Mapping[str, Any]], Cells], out: Path | None, as_json: bool
) -> None:
    """Write the result into the file, if there is one, and as JSON or as a table to the standard output.

    >>> deliver({"ratio": 1.1}, lambda result: Cells("", (), [], []), out=None, as_json=True)
    {
     "ratio": 1.1
    }
    """
    text = json.dumps(result, indent=1) + "\n"
    if out is not None:
        replace_file(out, text.encode())
    if as_json:
        sys.stdout.write(text)
    else:
        out_console.print(cells_of(result).table())
