"""``gear view``: recorded completions in the terminal, as a picture, or as a page."""

from pathlib import Path
from typing import Annotated

import typer

from gear_rl.cli.console import error_console, out_console, user_errors
from gear_rl.errors import InputError
from gear_rl.files import check_output


@user_errors
def view(
    files: Annotated[
        list[Path],
        typer.Argument(help="A record file, such as runs/demo/records.jsonl; --html takes several."),
    ],
    number: Annotated[
        list[int] | None,
        typer.Option(help="Which record, from 0 (may be repeated); else an instructive one."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a picture (.svg or .png) instead.")] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="In the terminal: all that student and teacher were shown.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with every record, for any browser, instead.")
    ] = None,
) -> None:
    """Show where the credit of recorded completions went: in the terminal, as a picture, or as a page."""
    from gear_rl.records import read_records
    from gear_rl.view.terminal import choose, rollout_panel

    for file in files:
        if not file.exists():
            raise InputError(f"{file} does not exist; `gear demo` writes runs/demo/records.jsonl")
    if len(files) > 1 and html is None:
        raise InputError(f"{len(files)} files: only a page shows several; add --html FILE")
    file = files[0]
    try:
        if html is not None:
            from gear_rl.view.html import save_html

            check_output(html, files, "--html")
            with error_console.status(f"packing the records into {html} ..."):
                count = save_html(files, html, title=" and ".join(str(path) for path in files))
            out_console.print(f"wrote {html} ({count} records)", highlight=False)
            return
        records = list(read_records(file))
        for wanted in number or ():
            if not 0 <= wanted < len(records):
                raise InputError(
                    f"--number: {wanted} is not there; {file} has {len(records)} records, from 0"
                )
        chosen = [records[wanted] for wanted in number] if number else [choose(records)]
        if picture is None:
            for record in chosen:
                out_console.print(rollout_panel(record, prompts))
        else:
            from gear_rl.view.picture import save_picture

            check_output(picture, files, "--picture")
            save_picture(chosen, picture)
            out_console.print(f"wrote {picture}", highlight=False)
    except ValueError as error:
        raise InputError(str(error)) from None
    except (TypeError, LookupError, ArithmeticError, AttributeError) as error:
        names = ", ".join(map(str, files))
        raise InputError(f"{names}: a record cannot be drawn ({type(error).__name__}: {error})") from None
