"""Where the commands write, what they print of an error that the user can correct, and how a signal ends them."""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from gear_rl.errors import InputError
from gear_rl.view.terminal import visible

out_console, error_console = Console(), Console(stderr=True)
"""Results go to the first, everything else to the second."""
P = ParamSpec("P")
DEBUG = "GEAR_DEBUG"
"""With this variable of the environment errors keep their traceback; ``gear --debug`` sets it."""
PACE_SECONDS = 30.0
"""Where output is no terminal, a long command says at most so often where it stands."""
_READERS = ("pyarrow", "datasets", "huggingface_hub", "safetensors")
"""Libraries that read what the user names: whatever they raise, a file or a place is to blame."""


class _Terminated(BaseException):
    """SIGTERM, as an exception: temporary folders go and children end on its way up."""


class _VisibleFormatter(logging.Formatter):
    """A log line quotes what stands in files: nothing in it steers the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).split("\n")))


class Pace:
    """A plain line now and then on where a command stands; nothing in a terminal, which shows a bar, and nothing
    of a command that is short.

    >>> say = Pace(Console(file=sys.stdout), every=0.0)
    >>> say("scoring gear: 8 of 64")
    scoring gear: 8 of 64
    """

    def __init__(self, console: Console, every: float = PACE_SECONDS) -> None:
        self._console, self._every = console, every
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        if self._console.is_terminal or time.monotonic() - self._last < self._every:
            return
        self._last = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def command_line(program: str = "gear") -> str:
    """The command that runs, so that its result can be made again."""
    return " ".join([program, *sys.argv[1:]])


def show_log(level: int = logging.INFO) -> None:
    """Our own log in the console; of the libraries under us only what a user can act on."""
    from gear_rl.runs.machine import quiet_libraries

    quiet_libraries()
    log = logging.getLogger("gear_rl")
    log.setLevel(level)
    handler = RichHandler(console=error_console, show_path=False, show_time=False, show_level=False)
    handler.setFormatter(_VisibleFormatter())
    log.handlers = [handler]
    log.propagate = False


def user_errors(command: Callable[P, None]) -> Callable[P, None]:
    """The command; what the user can correct is printed as one line, and the exit code is 2.

    That is an ``InputError``, an error of the operating system (a full disk, a permission), and what libraries
    that read files raise. Interrupted it ends with 130, terminated with 143, one line each, with the notes that
    the command has put on the exception.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _terminating():
                command(*args, **kwargs)
        except (KeyboardInterrupt, _Terminated) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            words = "; ".join(
                ["interrupted" if interrupted else "terminated", *getattr(error, "__notes__", ())]
            )
            error_console.print(f"gear: {words}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130 if interrupted else 143) from None
        except BrokenPipeError:
            # Whoever read the output wants no more of it; Python would complain again when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except Exception as error:
            line = one_line(error)
            if line is None:
                raise
            if os.environ.get(DEBUG):
                _print_traceback(error)
            error_console.print(f"[bold red]gear:[/] {escape(line)}", soft_wrap=True, highlight=False)
            raise typer.Exit(2) from None

    return run


def one_line(error: Exception) -> str | None:
    """What a user is told of an error that he can correct; None for one of ours, which keeps its traceback.

    >>> one_line(InputError("--steps: 0; give 1 or more")), one_line(PermissionError(13, "Denied", "a.txt"))
    ('--steps: 0; give 1 or more', 'a.txt: Denied (gear --debug ... says where)')
    >>> one_line(KeyError("ours"))
    """
    if isinstance(error, InputError):
        return visible(str(error))
    more = "(gear --debug ... says where)"
    if isinstance(error, OSError) and error.strerror:
        names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        return visible(f"{names}: {error.strerror} {more}" if names else f"{error.strerror} {more}")
    if isinstance(error, EOFError):
        return visible(f"a file or the input ended too early: {str(error) or 'nothing is left'} {more}")
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _READERS:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return visible(f"{first} {more}")
    return None


def _print_traceback(error: BaseException) -> None:
    """The whole story: errors that were translated into others are shown too."""
    link: BaseException | None = error
    while link is not None:
        link.__suppress_context__ = False
        link = link.__cause__ or link.__context__
    traceback.print_exception(error, file=sys.stderr)


@contextmanager
def _terminating() -> Generator[None]:
    """While it is open, SIGTERM is an exception; where somebody else handles it already it is left alone."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the second time at once
        raise _Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
