"""``gear report``: the page of a run or of a comparison, from what its folder holds."""

from pathlib import Path
from typing import Annotated

import typer

from gear_rl.errors import InputError, input_errors


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="The folder of a run or of a comparison, or the file of its runs.")
    ],
) -> None:
    """Make report.html of a run or of a comparison, as they do at their end."""
    from gear_rl.lab.cells import RUNS
    from gear_rl.view.run import save_run_page

    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if path.is_dir() and not (path / RUNS).exists():
            with input_errors():
                page = save_run_page(path)
        else:
            page = _comparison_page(path / RUNS if path.is_dir() else path)
        typer.echo(f"wrote {page}")


def _comparison_page(file: Path) -> Path:
    from gear_rl.lab.cells import RUNS
    from gear_rl.lab.findings import read_runs, save_report

    page = file.with_suffix(".html") if file.name != RUNS else file.with_name("report.html")
    try:
        save_report(read_runs(file), page)
    except ValueError as error:
        raise InputError(f"{file}: {error}; give the {RUNS} of a `gear compare`, or a folder") from None
    return page
