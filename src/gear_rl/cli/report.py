"""``gear report``: the page of a comparison, from its JSON file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gear_rl.errors import InputError


def report(
    files: Annotated[list[Path], typer.Argument(help="comparison.json of `gear compare`, one or several.")],
) -> None:
    """Make report.html beside the JSON file of each comparison; `gear compare` writes both."""
    from jinja2 import TemplateError

    from gear_rl.lab.report import save_report

    for file in files:
        page = file.parent / "report.html"
        try:
            save_report(json.loads(file.read_text(encoding="utf-8")), page)
        except (OSError, ValueError, TypeError, LookupError, AttributeError, TemplateError) as error:
            # A document that somebody edited may lack anything.
            message = f"{file}: {error}; give the comparison.json of a `gear compare`"
            raise InputError(message) from None
        typer.echo(f"wrote {page}")
