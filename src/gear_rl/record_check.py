"""Whether what was read from a record file is what its names say, so that its readers meet no surprise."""

from collections.abc import Mapping
from typing import Any, cast

_NONE, _NUMBER = type(None), {int, float}
_SCALARS: dict[str, set[type]] = {
    "step": {int},
    "group": {int},
    "method": {str},
    "prompt": {str},
    "reward": _NUMBER | {_NONE},
    "advantage": _NUMBER | {_NONE},  # null stands for what was not finite
    "fallback": {str, _NONE},
    "context": {str, _NONE},
    "teacher_prompt": {str, _NONE},
    "truncated": {bool},
    "format": {int},
}
_LISTS: dict[str, set[type]] = {
    "tokens": {str},
    "ids": {int},
    "mask": {int, bool},
    "turn": {int},
    "segment": {int},
    "credit": _NUMBER | {_NONE},
    "weight": _NUMBER | {_NONE},
}
_MAPPINGS = ("signals", "tools")


def record_fault(row: Mapping[str, Any]) -> str | None:
    """The first field of a record that holds another kind of value than it must, in words; None if all are right.

    >>> record_fault({"step": "1"}), record_fault({"ids": [1, "2"]}), record_fault({"step": 1, "later": "?"})
    ("step: '1' is no int", "ids: '2' is no int", None)
    """
    for name, kinds in _SCALARS.items():
        if name in row and type(row[name]) not in kinds:
            return _words(name, row[name], kinds)
    for name, kinds in _LISTS.items():
        if name in row and (fault := _list_fault(name, row[name], kinds)):
            return fault
    for name in _MAPPINGS:
        value = row.get(name, {})
        if not isinstance(value, dict):
            return f"{name}: {str(value)[:40]!r} is no object"
        for key, inner in cast(dict[str, Any], value).items():
            where = f"{name}.{key}"
            if name == "tools" and type(inner) is not int:
                return _words(where, inner, {int})
            if name == "signals" and (fault := _list_fault(where, inner, _NUMBER | {_NONE})):
                return fault
    return None


def _list_fault(name: str, values: Any, kinds: set[type]) -> str | None:
    if not isinstance(values, list):
        return f"{name}: {str(values)[:40]!r} is no list"
    items = cast(list[Any], values)
    if set(map(type, items)) <= kinds:
        return None
    return _words(name, next(item for item in items if type(item) not in kinds), kinds)


def _words(name: str, value: Any, kinds: set[type]) -> str:
    wanted = " or ".join(sorted(kind.__name__ for kind in kinds if kind is not _NONE))
    return f"{name}: {str(value)[:40]!r} is no {wanted}"
