"""Rows as a dataset, if every column holds one kind of value: a dataset would make 3.0 of a 3 beside a 2.5."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Iterator, Sequence
from typing import Any, cast

from gear_rl.data.sources import Rows, first_line
from gear_rl.errors import InputError

_KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a fraction", list: "a list"}


def as_dataset(rows: Rows, name: str, numbers: Sequence[int] | None = None) -> Any:
    """The rows as a dataset; ``InputError`` that names column, lines and kinds where one column holds several.

    ``numbers`` are the lines that the rows come from.

    >>> as_dataset([{"prompt": "a", "answer": 3}, {"prompt": "b", "answer": 2.5}], "d.jsonl")
    Traceback (most recent call last):
    gear_rl.errors.InputError: dataset: d.jsonl: column 'answer' holds values of different kinds: a whole number
    in row 0, a fraction in row 1; write them alike, best all as text
    """
    import datasets
    import pyarrow as pa

    places = [f"row {i}" for i in range(len(rows))] if numbers is None else [f"line {i}" for i in numbers]
    try:
        made: Any = datasets.Dataset.from_list(rows)
        why = ""
    except (TypeError, ValueError, OverflowError, RecursionError, pa.ArrowException) as error:
        made, why = None, first_line(error)
    for column in rows[0]:
        # A column without fractions that Arrow took as it is holds one kind.
        if made is not None and "double" not in str(made.features.arrow_schema.field(column).type):
            continue
        seen: dict[str, tuple[str, int]] = {}
        for i, row in enumerate(rows):
            for path, kind in _kinds(row[column], column):
                first, where = seen.setdefault(path, (kind, i))
                if first != kind:
                    raise InputError(
                        f"dataset: {name}: column {path!r} holds values of different kinds: {first} in "
                        f"{places[where]}, {kind} in {places[i]}; write them alike, best all as text"
                    )
    if made is None:
        raise InputError(f"dataset: {name}: a column cannot be kept ({why}); write its values as text")
    return made


def _kinds(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The kind of the value and of everything in it, each with its place; nothing for null."""
    if value is None:
        return
    yield path, _KINDS.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)
    if isinstance(value, dict):
        for name, inner in cast(dict[str, Any], value).items():
            yield from _kinds(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in cast(list[Any], value):
            yield from _kinds(inner, f"{path}[]")
