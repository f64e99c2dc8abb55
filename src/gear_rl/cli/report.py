"""``gear report``: the page of a run or of a comparison, from what its folder holds."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gear_rl.errors import InputError

COMPARISON = "comparison.json"


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="The folder of a run or of a comparison, or a comparison.json.")
    ],
) -> None:
    """Make report.html of a run or of a comparison, as they do at their end."""
    from gear_rl.view.run import save_run_page

    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if path.is_dir() and not (path / COMPARISON).exists():
            try:
                page = save_run_page(path)
            except ValueError as error:
                raise InputError(str(error)) from None
        else:
            page = _comparison_page(path / COMPARISON if path.is_dir() else path)
        typer.echo(f"wrote {page}")


def _comparison_page(file: Path) -> Path:
    from jinja2 import TemplateError

    from gear_rl.lab.report import save_report

    page = file.parent / "report.html"
    try:
        save_report(json.loads(file.read_text(encoding="utf-8")), page)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, TemplateError) as error:
        # A document that somebody edited may lack anything.
        message = f"{file}: {error}; give the comparison.json of a `gear compare`, or a folder"
        raise InputError(message) from None
    return page
