"""The one error that a user is meant to read: what is wrong, where, and how to correct it."""

import difflib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path


class InputError(Exception):
    """Bad input. Its text names the field, the value and the fix; the command prints it without a traceback.

    >>> print(InputError("--steps: 0; give 1 or more"))
    --steps: 0; give 1 or more
    """


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


def raised(error: BaseException) -> str:
    """What an error of the user's own code says, and the deepest line of it that is in no library.

    >>> raised(ValueError("no answer\\nmore"))
    'ValueError: no answer'
    """
    words = type(error).__name__ + "".join(f": {line}" for line in str(error).splitlines()[:1])
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parent), "<")
    own = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames
    return f"{words} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else words
