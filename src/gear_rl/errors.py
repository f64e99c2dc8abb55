"""The error for bad input, and what its messages are made of."""

import difflib
import logging
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from pathlib import Path


class InputError(ValueError):
    """Bad input. The message names the field, the value and the fix; a command prints it without a traceback.

    >>> print(InputError("--steps: 0; give 1 or more"))
    --steps: 0; give 1 or more
    """


@contextmanager
def input_errors(where: str = "") -> Generator[None]:
    """Raise what a library refuses as ``InputError``, with ``where`` before its message.

    >>> with input_errors("model: "):
    ...     raise OSError("no such folder")
    Traceback (most recent call last):
    gear_rl.errors.InputError: model: no such folder
    """
    try:
        yield
    except (ValueError, ImportError, OSError) as error:
        raise InputError(f"{where}{error}") from None


@cache
def warn_once(message: str) -> None:
    """Log a warning, the first time in a process: a method is built many times in a run."""
    logging.getLogger(__name__).warning(message)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known words, or the first of the list.

    >>> did_you_mean("alhpa", ["alpha", "clip"])
    'did you mean alpha?'
    >>> did_you_mean("zzz", ["alpha", "clip"])
    'choose from alpha, clip'
    """
    known = list(known)
    if not known:
        return "it has none"
    near = [match for own in (word, word.lower()) for match in difflib.get_close_matches(own, known)]
    near = [*dict.fromkeys(near)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    rest = f", ... ({len(known) - 12} more)" if len(known) > 12 else ""
    return f"choose from {', '.join(known[:12])}{rest}"


def error_text(error: BaseException) -> str:
    """The message of an error in the user's code, and its deepest line that is in no library.

    >>> error_text(ValueError("no answer\\nmore"))
    'ValueError: no answer'
    """
    words = type(error).__name__ + "".join(f": {line}" for line in str(error).splitlines()[:1])
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parent), "<")
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return f"{words} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else words
