"""Where the commands write, and what they print of an error that the user can correct."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from gear_rl.errors import InputError

out_console, error_console = Console(), Console(stderr=True)
"""Results go to the first, everything else to the second."""
P = ParamSpec("P")


def show_log(level: int = logging.INFO) -> None:
    """Our own log in the console; of the libraries under us only what a user can act on."""
    from gear_rl.runs.machine import quiet_libraries

    quiet_libraries()
    log = logging.getLogger("gear_rl")
    log.setLevel(level)
    log.handlers = [RichHandler(console=error_console, show_path=False, show_time=False, show_level=False)]
    log.propagate = False


def user_errors(command: Callable[P, None]) -> Callable[P, None]:
    """The command; an ``InputError`` is printed as one line, and the exit code is 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            error_console.print(f"[bold red]gear:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            error_console.print("gear: interrupted", highlight=False)
            raise typer.Exit(130) from None

    return run
