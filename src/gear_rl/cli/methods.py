"""``gear methods``: the catalogue of credit-assignment methods."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from gear_rl.cli.console import out_console
from gear_rl.errors import InputError, did_you_mean

COSTS = Path(__file__).with_name("method_costs.json")
"""What ``python -m benchmarks methods`` measured."""


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of one method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """List the credit-assignment methods, the signals they need, and their settings."""
    from gear_rl.method_builder import COMBINED, build_method
    from gear_rl.methods import METHODS
    from gear_rl.settings import settings_of
    from gear_rl.signals.signal import names_of
    from gear_rl.traits import distillation_of, engine_settings_of, is_additive

    costs = json.loads(COSTS.read_text(encoding="utf-8"))
    if name is not None and (COMBINED.search(name) or name.partition(":")[0] in METHODS):
        name = build_method(name).name
    if name is not None and name not in METHODS:
        raise InputError(f"no method {name!r}; {did_you_mean(name, METHODS)}")
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
            "step": costs["methods"].get(key, {}).get("ratio"),
        }
        for key, cls in METHODS.items()
        if name in (None, key)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif name is None:
        table = Table("method", "needs", "step", "idea", "source")
        for row in rows:
            needs, step = ", ".join(row["needs"]) or "nothing", row["step"]
            step = "" if step is None else f"{step:.2f}"
            table.add_row(row["name"], needs, step, row["idea"], row["source"])
        out_console.print(table)
        typer.echo(f"step: {costs['what']}, {costs['task']}/{costs['tier']} of the arena.")
    else:
        table = Table("setting", "default", "meaning")
        for setting in rows[0]["settings"]:
            default = escape(str(setting["default"]).replace("\n", r"\n"))
            table.add_row(setting["name"], default, escape(f"{setting['help']} [{setting['takes']}]"))
        out_console.print(table)
        if rows[0]["engine"]:
            words = ", ".join(f"{key}: {value}" for key, value in rows[0]["engine"].items())
            typer.echo(f"Its own settings of the engine, applied unless you set them: {words}")
