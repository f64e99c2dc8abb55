"""Columns under the names that a run wants; values inside others are copied out."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Mapping
from typing import Any

from gear_rl.data.rewards.text import dotted
from gear_rl.data.sources import NO_ROWS, Rows
from gear_rl.errors import InputError, did_you_mean


def mapped_rows(rows: Rows, name: str, columns: Mapping[str, str]) -> Rows:
    """Rows of a list under their new names; a nested value is copied out, and its column stays.

    Raises ``InputError`` for a column that is not there, and where a new name is taken.

    >>> mapped_rows([{"q": "1 + 1", "extra": {"answer": "2"}}], "d", {"prompt": "q", "answer": "extra.answer"})
    [{'extra': {'answer': '2'}, 'prompt': '1 + 1', 'answer': '2'}]
    """
    present = list({column: None for row in rows for column in row})  # the first need not have all
    _check_columns(name, columns, present, _sample(rows, columns))
    moved = {old for old in columns.values() if old in present}
    kept = [old for old in present if old not in moved]
    return [
        {old: row.get(old) for old in kept} | {new: dotted(row, old) for new, old in columns.items()}
        for row in rows
    ]


def mapped_dataset(dataset: Any, name: str, columns: Mapping[str, str]) -> Any:
    """The same for a dataset or a stream."""
    sample: Mapping[str, Any] = next(iter(dataset), {})
    present: list[str] = list(dataset.column_names or sample)
    if not present:
        raise InputError(f"dataset: {name} {NO_ROWS}")
    _check_columns(name, columns, present, sample)
    renamed = {old: new for new, old in columns.items() if old != new and old in present}
    nested = {new: old for new, old in columns.items() if old not in present}
    if nested:

        def inner(row: Mapping[str, Any]) -> dict[str, Any]:
            return {new: dotted(row, old) for new, old in nested.items()}

        dataset = dataset.map(inner)
    return dataset.rename_columns(renamed) if renamed else dataset


def _check_columns(
    name: str, columns: Mapping[str, str], present: list[str], sample: Mapping[str, Any]
) -> None:
    for new, old in columns.items():
        if new in present and old != new:
            raise InputError(
                f"columns.{new}: {name} has a column of that name already; drop or rename it first"
            )
        top, _, rest = old.partition(".")
        if old in present:
            continue
        if top not in present:
            raise InputError(f"columns.{new}: {name} has no column {old!r}; {did_you_mean(old, present)}")
        inner: Any = sample.get(top)
        key = rest.partition(".")[0]
        if not rest or not isinstance(inner, Mapping | list):
            raise InputError(
                f"columns.{new}: {old!r} goes into column {top!r} of {name}, which holds "
                f"{type(inner).__name__}"
            )
        if isinstance(inner, Mapping) and key not in inner:
            raise InputError(f"columns.{new}: {top!r} of {name} has no {key!r}; {did_you_mean(key, inner)}")
    if "prompt" not in present and "prompt" not in columns:
        raise InputError(
            f"dataset: {name} has no column 'prompt', only {', '.join(present)}; name yours with "
            "--columns.prompt COLUMN"
        )


def _sample(rows: Rows, columns: Mapping[str, str]) -> dict[str, Any]:
    """A value for each column that a path goes into, from the first row that has one."""
    tops = {old.partition(".")[0] for old in columns.values()}
    return {top: next((row[top] for row in rows if row.get(top) is not None), None) for top in tops}
