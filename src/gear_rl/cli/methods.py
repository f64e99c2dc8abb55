"""``gear methods``: the catalogue of credit-assignment methods."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from gear_rl.cli.console import out_console, user_errors
from gear_rl.errors import InputError


@user_errors
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of one method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    markdown: Annotated[bool, typer.Option(help="As a Markdown table.")] = False,
) -> None:
    """List the credit-assignment methods, the signals they need, and their settings."""
    from gear_rl.errors import did_you_mean
    from gear_rl.methods import METHODS
    from gear_rl.runs.config import settings_of
    from gear_rl.signals.signal import names_of
    from gear_rl.traits import distillation_of, engine_settings_of, is_additive

    if name is not None and name not in METHODS:
        raise InputError(f"no method {name!r}; {did_you_mean(name, METHODS)}")
    chosen: dict[str, Any] = {key: cls for key, cls in METHODS.items() if name in (None, key)}
    rows: list[dict[str, Any]] = [
        {
            "name": key,
            "idea": (cls.__doc__ or "").strip().splitlines()[0],
            "needs": list(names_of(cls().needs)),
            "settings": settings_of(cls),
            "source": cls.source,
            "additive": is_additive(cls()),
            "distils": distillation_of(cls()) is not None,
            "engine": engine_settings_of(cls()),
        }
        for key, cls in chosen.items()
    ]
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    if markdown:
        from gear_rl.runs.config import needs_of

        sys.stdout.write("| method | idea | needs | source |\n|---|---|---|---|\n")
        for row in rows:
            sys.stdout.write(
                f"| `{row['name']}` | {row['idea']} | {needs_of(chosen[row['name']]())} | {row['source']} |\n"
            )
        return
    table = (
        Table("method", "needs", "idea", "source") if name is None else Table("setting", "default", "meaning")
    )
    for row in rows:
        if name is None:
            table.add_row(row["name"], ", ".join(row["needs"]) or "nothing", row["idea"], row["source"])
        for setting in row["settings"] if name is not None else ():
            choices = f" [{' | '.join(setting['choices'])}]" if setting["choices"] else ""
            table.add_row(setting["name"], str(setting["default"]), escape((setting["help"] or "") + choices))
    out_console.print(table)
    if name is not None and rows[0]["engine"]:
        words = ", ".join(f"{key}: {value}" for key, value in rows[0]["engine"].items())
        words = f"Its own settings of the engine, applied unless you set them: {words}"
        out_console.print(words, markup=False, highlight=False, soft_wrap=True)
