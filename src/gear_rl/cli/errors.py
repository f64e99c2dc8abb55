"""The one error that a user is meant to read: what is wrong, where, and how to mend it."""

import difflib
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec

import typer
from rich.console import Console
from rich.markup import escape

out_console, error_console = Console(), Console(stderr=True)
"""Where the commands write: results, and everything else."""
P = ParamSpec("P")


class InputError(Exception):
    """Bad input. Its text names the field, the value and the fix; the command prints it without a traceback."""


def did_you_mean(word: str, known: Iterable[str], show: int = 12) -> str:
    """The end of an error message: the nearest known words, or the first of the list.

    >>> did_you_mean("alhpa", ["alpha", "clip"])
    'did you mean alpha?'
    >>> did_you_mean("zzz", ["alpha", "clip"])
    'choose from alpha, clip'
    """
    known = list(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    rest = f", ... ({len(known) - show} more)" if len(known) > show else ""
    return f"choose from {', '.join(known[:show])}{rest}"


def mendable(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with what the user can mend printed as one line, and exit code 2."""

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
