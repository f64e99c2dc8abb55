"""``gear view``: recorded completions in the terminal, as a picture, or as a page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gear_rl.cli.console import error_console, out_console
from gear_rl.errors import InputError, input_errors
from gear_rl.files import check_output


def view(
    files: Annotated[
        list[Path], typer.Argument(help="A record file or a run's folder; --html takes several.")
    ],
    number: Annotated[list[int] | None, typer.Option(help="Which record, from 0; may be repeated.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a picture (.svg) instead.")] = None,
    prompts: Annotated[bool, typer.Option("--prompts", help="Show the whole prompts.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with every record instead.")] = None,
) -> None:
    """Show the credit of recorded completions: terminal, picture or page."""
    from gear_rl.lab.cells import RUNS
    from gear_rl.records import RECORDS, read_records
    from gear_rl.view.group_notes import is_weight_on_mistake, judge_groups, share_note
    from gear_rl.view.html import save_html
    from gear_rl.view.picture import save_picture
    from gear_rl.view.terminal import choose, rollout_panel

    if html is not None and (picture is not None or number):
        raise InputError("--html: its page has every record; leave out --picture and --number")
    if prompts and (html is not None or picture is not None):
        raise InputError("--prompts: is for the terminal; a page has them all, a picture none")
    for file in files:
        if (file / RUNS).exists():
            raise InputError(f"{file} is a comparison, which keeps no completions; open {file}/report.html")
    files = [file / RECORDS if file.is_dir() else file for file in files]
    for file in files:
        if not file.exists():
            raise InputError(f"{file} does not exist; a run writes it unless record_file says otherwise")
    if len(files) > 1 and html is None:
        raise InputError(f"{len(files)} files: only a page shows several; add --html FILE")
    with input_errors():
        if html is not None:
            check_output(html, files, "--html")
            with error_console.status(escape(f"packing the records into {html} ...")):
                count = save_html(files, html, title=" and ".join(map(str, files)))
            typer.echo(f"wrote {html} ({count} records)")
            return
        records = list(judge_groups(read_records(files[0])))
        missing = [wanted for wanted in number or () if not 0 <= wanted < len(records)]
        if missing:
            message = f"{missing[0]} is not there; {files[0]} has {len(records)} records, from 0"
            raise InputError(f"--number: {message}")
        chosen = [records[wanted] for wanted in number] if number else [choose(records)]
        if picture is None:
            out_console.print(*(rollout_panel(record, prompts) for record in chosen))
            if not number:
                out_console.print(share_note(map(is_weight_on_mistake, records)))
        else:
            check_output(picture, files, "--picture")
            save_picture(chosen, picture)
            typer.echo(f"wrote {picture}")
