"""The error for bad input, and what its messages are made of."""

import builtins
import difflib
import logging
import math
import numbers
import sys
import traceback
import types
import typing
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints


class InputError(Exception):
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


def raised(error: BaseException) -> str:
    """The message of an error in the user's code, and its deepest line that is in no library.

    >>> raised(ValueError("no answer\\nmore"))
    'ValueError: no answer'
    """
    words = type(error).__name__ + "".join(f": {line}" for line in str(error).splitlines()[:1])
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parent), "<")
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return f"{words} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else words


def check_settings(
    settings: object, *, shares: Sequence[str] = (), finite: Sequence[str] = (), positive: Sequence[str] = ()
) -> None:
    """Raise ``ValueError`` for the first setting of a dataclass that is of another type or outside its range.

    A ``Literal`` field must be one of its choices, ``shares`` 0 to 1, ``finite`` numbers 0 or more, ``positive``
    numbers above 0.

    >>> from types import SimpleNamespace
    >>> check_settings(SimpleNamespace(strength=2.0), shares=["strength"])
    Traceback (most recent call last):
    ValueError: strength: 2.0 is not a share; give 0 to 1
    """
    check_types(settings, type(settings))
    for name in shares:
        if not 0.0 <= getattr(settings, name) <= 1.0:
            raise ValueError(f"{name}: {getattr(settings, name)} is not a share; give 0 to 1")
    for name in finite:
        if not 0.0 <= getattr(settings, name) < math.inf:
            raise ValueError(f"{name}: {getattr(settings, name)} must be a finite number, 0 or more")
    for name in positive:
        if not 0.0 < getattr(settings, name) < math.inf:
            raise ValueError(f"{name}: {getattr(settings, name)} must be a finite number above 0")


def check_types(settings: object, declared: type) -> None:
    """Raise ``ValueError`` for the first of the fields that ``declared`` has that is of another type."""
    for name, hint in get_type_hints(declared).items():
        value = getattr(settings, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ValueError(f"{name}: {value!r} is not one of {', '.join(get_args(hint))}")
        if not _fits(value, hint):
            raise ValueError(f"{name}: {value!r:.200} is not right; give {_in_words(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a setting has its type; true is no number, and a list is as good as a tuple."""
    kinds: tuple[Any, ...] = get_args(hint)
    match get_origin(hint) or hint:
        case builtins.float | builtins.int:  # NumPy's numbers too
            kind = numbers.Integral if hint is int else numbers.Real
            return type(value) is not bool and isinstance(value, kind)
        case builtins.tuple:
            if not isinstance(value, tuple | list):
                return False
            given = cast(Sequence[Any], value)
            many = [kinds[0]] * len(given) if kinds[-1] is ... else kinds
            return len(given) == len(many) and all(map(_fits, given, many))
        case types.UnionType | typing.Union:
            return any(_fits(value, kind) for kind in kinds)
        case type() as kind:
            return isinstance(value, kind)
        case _:
            return True


def _in_words(hint: Any) -> str:
    words = {
        float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "None",
        list[str]: "a list of texts", dict[str, Any]: "a mapping",
    }  # fmt: skip
    if hint in words:
        return words[hint]
    kinds: tuple[Any, ...] = get_args(hint)
    if get_origin(hint) is tuple:
        return f"[{', '.join('...' if kind is ... else _in_words(kind) for kind in kinds)}]"
    if kinds:
        return " or ".join(map(_in_words, kinds))
    return getattr(hint, "name", f"a {hint.__name__}")
