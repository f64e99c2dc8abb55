"""What the commands share: consoles, options, one-line errors, exit codes of signals and progress."""

import logging
import os
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import Progress

from gear_rl.errors import InputError, did_you_mean
from gear_rl.view.terminal import visible_text

out_console, error_console = Console(), Console(stderr=True)
"""Results go to the first, everything else to the second."""
AsJson = Annotated[bool, typer.Option("--json", help="The numbers, as JSON.")]
DEBUG = "GEAR_DEBUG"
"""With this environment variable errors keep their traceback; ``gear --debug`` sets it."""
_PACE = 30.0
"""Seconds between two lines of progress."""
_READERS = ("pyarrow", "datasets", "huggingface_hub", "safetensors")
"""Libraries that read the user's files: whatever they raise is an error in a file or its location."""


def say(text: str) -> None:
    """Print a line on stderr, without markup, above a progress bar."""
    error_console.print(text, markup=False, highlight=False, soft_wrap=True)


def command_line(program: str = "gear") -> str:
    """The command that is running, for reports, as a shell reads it, without tokens."""
    text = " ".join([program, *map(shlex.quote, sys.argv[1:])])
    return re.sub(r"""(hub_token[ =]|\btoken['"]?\s*:)\s*['"]?[^\s'"},]+""", r"\1...", text)


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(context: typer.Context, *names: str, why: str) -> None:
    """``InputError`` if one of these options was given."""
    for name in names:
        if is_given(context, name):
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def refuse_words(context: typer.Context) -> None:
    """``InputError`` for words that are no option, where no settings may follow."""
    if context.args:
        options = [parameter.opts[0] for parameter in context.command.params]
        raise InputError(f"{context.args[0]}: no such option; {did_you_mean(context.args[0], options)}")


class _Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that temporary folders are removed and children end."""


def _terminate(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise _Terminated


def user_errors(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its errors on one line of stderr.

    The exit code is 2 for an ``InputError``, an error of the operating system (a full disk, a permission) or of a
    library that reads files; 130 for Ctrl-C and 143 for SIGTERM, with the notes of the exception. Other errors
    keep their traceback.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        before = signal.signal(signal.SIGTERM, _terminate)
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as error:
            word, code = ("terminated", 143) if isinstance(error, _Terminated) else ("interrupted", 130)
            say(f"gear: {'; '.join([word, *getattr(error, '__notes__', ())])}")
            raise typer.Exit(code) from None
        except Exception as error:
            line = one_line(error)
            if line is None or isinstance(error, BrokenPipeError):  # which typer ends quietly
                raise
            if os.environ.get(DEBUG):
                _print_traceback(error)
            say(f"gear: {line}")
            raise typer.Exit(2) from None
        finally:
            signal.signal(signal.SIGTERM, before)

    return run


def one_line(error: Exception) -> str | None:
    """The message of an error that the user can correct; None for a fault of ours, which keeps its traceback.

    >>> one_line(InputError("--steps: 0; give 1 or more")), one_line(PermissionError(13, "Denied", "a.txt"))
    ('--steps: 0; give 1 or more', "[Errno 13] Denied: 'a.txt' (gear --debug ... says where)")
    >>> one_line(KeyError("ours"))
    """
    if isinstance(error, InputError):
        return visible_text(str(error))
    if isinstance(error, OSError | EOFError) or type(error).__module__.partition(".")[0] in _READERS:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return visible_text(f"{first} (gear --debug ... says where)")
    return None


def _print_traceback(error: BaseException) -> None:
    """Print the error and those behind it, even where ``from None`` hid them."""
    link: BaseException | None = error
    while link is not None:
        link.__suppress_context__ = False
        link = link.__cause__ or link.__context__
    traceback.print_exception(error, file=sys.stderr)


class _VisibleFormatter(logging.Formatter):
    """A log line may quote a file: no control character in it reaches the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible_text, super().format(record).split("\n")))


def show_log(level: int = logging.INFO) -> None:
    """Our own log in the console; of libraries only what a user can act on."""
    from gear_rl.runs.machine import quiet_libraries

    quiet_libraries()
    log = logging.getLogger("gear_rl")
    log.setLevel(level)
    handler = RichHandler(console=error_console, show_path=False, show_time=False, show_level=False)
    handler.setFormatter(_VisibleFormatter())
    log.handlers = [handler]
    log.propagate = False


@contextmanager
def progress_bar(console: Console, what: str = "") -> Generator[Callable[[str, float, int], None]]:
    """A bar in a terminal, else a line every half minute; its function takes a name, the work done, the total."""
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        work, last = bar.add_task(what), time.monotonic()

        def advance(name: str, done: float, total: int) -> None:
            nonlocal last
            bar.update(work, description=escape(f"{what}{name}"), completed=done, total=total)
            if not console.is_terminal and time.monotonic() - last >= _PACE:
                last = time.monotonic()
                line = f"{what}{name}: {done:g} of {total}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield advance


def number_or_dash(value: float | None, digits: int = 3) -> str:
    """A number for a table.

    >>> number_or_dash(0.5), number_or_dash(None)
    ('0.500', '-')
    """
    return "-" if value is None else f"{value:.{digits}f}"
