"""JSON that means what is written, or an error: what Python's own reader would change or pass over is refused."""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

_WHOLE = 2**63
"""Whole numbers of datasets have 64 bits."""
_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, *, half_characters: bool = False) -> Any:
    """The value of a JSON text. ``ValueError`` in a few words for everything that could not be kept as written.

    That is, beside what is no JSON: NaN and infinities, a key that stands twice in an object, a number beyond 64
    bits, a fraction beyond what a float holds, half a surrogate pair, and lists in lists beyond Python's depth.
    ``half_characters`` lets halves pass, for a reader that shows them as what they are.

    >>> parse_json('{"answer": "007"}')
    {'answer': '007'}
    >>> parse_json('{"answer": 1, "answer": 2}')
    Traceback (most recent call last):
    ValueError: the key 'answer' stands twice
    >>> parse_json("[NaN]")
    Traceback (most recent call last):
    ValueError: NaN is no JSON value; write null, or quote it
    """
    value = _refusing(lambda: _DECODER.decode(text))
    if not half_characters and _SURROGATE.search(text):
        check_characters(value)
    return value


def parse_items(text: str) -> Iterator[tuple[int, Any]]:
    """The values of a JSON list one by one, each with the line that it begins in; ``ValueError`` names the line.

    >>> list(parse_items('[{"a": 1},\\n 2]'))
    [(1, {'a': 1}), (2, 2)]
    """
    place, line, counted = _after_space(text, 0), 1, 0
    expected, escapes = "[", _SURROGATE.search(text) is not None
    while text[place : place + 1] == expected:
        place = _after_space(text, place + 1)
        line, counted = line + text.count("\n", counted, place), place
        if expected == "[" and text[place : place + 1] == "]":
            break
        try:
            value, place = _refusing(lambda start=place: _DECODER.raw_decode(text, start))
            if escapes:
                check_characters(value)
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None
        yield line, value
        place, expected = _after_space(text, place), ","
    if text[place : place + 1] != "]" or _after_space(text, place + 1) < len(text):
        line += text.count("\n", counted, place)
        raise ValueError(f"line {line}: not JSON (no list, or one that does not end)")


def is_blank(text: str) -> bool:
    """Whether a line holds nothing but JSON's white space; control characters and the like are damage, no space.

    >>> is_blank(" \\t\\r\\n"), is_blank("\\x1f"), is_blank("\\x0c")
    (True, False, False)
    """
    return _after_space(text, 0) == len(text)


def check_characters(value: Any) -> None:
    """Raise ``ValueError`` that says where a value holds half a surrogate pair.

    >>> check_characters({"meta": ["\\ud83d"]})
    Traceback (most recent call last):
    ValueError: meta.0 holds half a surrogate pair, which is no character
    """
    path = half_character(value)
    if path is not None:
        raise ValueError(f"{path or 'the text'} holds half a surrogate pair, which is no character")


def _refusing(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not JSON ({error.msg}, {place}column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _after_space(text: str, place: int) -> int:
    return cast(re.Match[str], _SPACE.match(text, place)).end()


def half_character(value: Any, path: str = "") -> str | None:
    """Where a value holds half a surrogate pair, which no file can hold: a dotted path; None for nowhere.

    >>> half_character({"prompt": "a", "meta": ["b", "\\ud800"]}), half_character("\\ud83d\\ude00")
    ('meta.1', '')
    >>> half_character("😀")
    """
    if isinstance(value, str):
        return None if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else path
    if isinstance(value, dict):
        pairs = list(cast(dict[Any, Any], value).items())
        names = half_character([str(name) for name, _ in pairs])
        if names is not None:
            return f"a key of {path}" if path else "a key"
    else:
        pairs = list(enumerate(cast(list[Any], value))) if isinstance(value, list) else []
    for name, inner in pairs:
        found = half_character(inner, f"{path}.{name}" if path else str(name))
        if found is not None:
            return found
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return found


def _whole(digits: str) -> int:
    # Python itself refuses thousands of digits, for the time that they take.
    number = int(digits) if len(digits) < 40 else _WHOLE
    if not -_WHOLE <= number < _WHOLE:
        raise ValueError(f"{digits[:24]}... is beyond 64 bits; quote it")
    return number


def _fraction(digits: str) -> float:
    number = float(digits)
    significand = digits.lower().partition("e")[0]
    if math.isinf(number) or (number == 0 and any(digit in "123456789" for digit in significand)):
        raise ValueError(f"{digits[:24]} is beyond what a number holds; quote it")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value; write null, or quote it")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_whole, parse_float=_fraction, parse_constant=_constant
)
