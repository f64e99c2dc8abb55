"""Rows out of text files as they were written: JSON lines, JSON lists and CSV. What is no row keeps its line.

Nothing is guessed: a CSV cell is text, a JSON value is what ``strict_json`` reads.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gear_rl.errors import InputError, did_you_mean
from gear_rl.strict_json import half_character, is_blank, parse_items, parse_json

CSV_TYPES = ("int", "float", "bool")
"""What a CSV column may be declared as; the others are text."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is no row."""

    number: int
    """From 1."""
    reason: str
    text: str


Lines = Iterator[tuple[int, dict[str, Any] | Unreadable]]
"""Rows and what stands between them, each with the number of the line that it begins in."""


def read_lines(path: Path, csv_types: Mapping[str, str]) -> Lines:
    """The rows of a file by its suffix; a ``.json`` file holds a list of objects, or one object per line.

    ``csv_types`` say which columns of a CSV file are no text. ``InputError`` where rows cannot be told.
    """
    if path.suffix == ".csv":
        return csv_lines(path, csv_types)
    return json_items(path) if path.suffix == ".json" else numbered_lines(path)


def numbered_lines(path: Path) -> Lines:
    """The rows of a JSON lines file; blank lines are passed over.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     _ = file.write(b'{"prompt": "2 + 2"}\\n\\n3\\n'), file.flush()
    ...     [*numbered_lines(Path(file.name))]
    [(1, {'prompt': '2 + 2'}),
     (3, Unreadable(number=3, reason='expected an object, found int', text='3\\n'))]
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="backslashreplace")
            if is_blank(text):
                continue
            try:
                raw.decode()
                row = parse_json(text)
            except UnicodeDecodeError:
                yield number, Unreadable(number, "not UTF-8 text", text)
            except ValueError as error:
                yield number, Unreadable(number, str(error), text)
            else:
                yield number, _row(row, number, text)


def json_items(path: Path) -> Lines:
    """The rows of a JSON list of objects; of any other file as ``numbered_lines``."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"dataset: {path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if not text.lstrip().startswith("["):
        yield from numbered_lines(path)
        return
    try:
        for number, row in parse_items(text):
            yield number, _row(row, number, repr(row))
    except ValueError as error:
        raise InputError(f"dataset: {path}, {error}") from None


def csv_lines(path: Path, types: Mapping[str, str]) -> Lines:
    """The rows of a CSV file with a line of names; every cell is text unless ``types`` declares its column.

    A cell that is empty is the empty text, and None in a declared column. Blank lines are passed over.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     _ = file.write(b"prompt,answer,level\\na,007,2\\nb,,x\\n"), file.flush()
    ...     [*csv_lines(Path(file.name), {"level": "int"})]
    [(2, {'prompt': 'a', 'answer': '007', 'level': 2}),
     (3, Unreadable(number=3, reason="level: 'x' is no int", text='b,,x\\n'))]
    """
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        taken: list[str] = []
        reader = csv.reader(_noting(file, taken), strict=True)
        names: list[str] | None = None
        while True:
            number = reader.line_num + 1
            taken.clear()
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, Unreadable(number, f"not CSV ({error})", _printable(taken))
                continue
            if not cells:
                continue
            if names is None:
                names = _names(cells, types, path)
                continue
            row = _cells(names, cells, types)
            yield number, row if isinstance(row, dict) else Unreadable(number, row, _printable(taken))


def _row(value: Any, number: int, text: str) -> dict[str, Any] | Unreadable:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    return Unreadable(number, f"expected an object, found {type(value).__name__}", text)


def _noting(file: IO[str], taken: list[str]) -> Iterator[str]:
    """The lines of a file, each put into ``taken`` when it is read: a row may have several."""
    for line in file:
        taken.append(line)
        yield line


def _printable(taken: list[str]) -> str:
    return "".join(taken).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _names(cells: list[str], types: Mapping[str, str], path: Path) -> list[str]:
    if half_character(cells) is not None:
        raise InputError(f"dataset: {path}: the first line is not UTF-8 text; save it as UTF-8")
    for name in cells:
        if cells.count(name) > 1:
            raise InputError(f"dataset: {path}: two columns are named {name!r}; rename one")
    for name, kind in types.items():
        if name not in cells:
            raise InputError(f"csv_types.{name}: {path} has no such column; {did_you_mean(name, cells)}")
        if kind not in CSV_TYPES:
            raise InputError(f"csv_types.{name}: {kind!r} is not one of {', '.join(CSV_TYPES)}")
    return cells


def _cells(names: list[str], cells: list[str], types: Mapping[str, str]) -> dict[str, Any] | str:
    """The row, or why the line is none."""
    if half_character(cells) is not None:
        return "not UTF-8 text"
    if len(cells) != len(names):
        return f"{len(cells)} values for {len(names)} columns"
    row: dict[str, Any] = dict(zip(names, cells, strict=True))
    for name, kind in types.items():
        text = row[name].strip()
        try:
            row[name] = _READ[kind](text) if text else None
        except ValueError:
            return f"{name}: {row[name]!r} is no {kind}"
    return row


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _truth(text: str) -> bool:
    return ("false", "true").index(text.lower()) == 1


_READ: dict[str, Callable[[str], Any]] = {"int": int, "float": _finite, "bool": _truth}
