"""Columns of a dataset whose values stay as they are."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import pyarrow as pa

from gear_rl.errors import InputError


class ExactJson(datasets.Json):
    """JSON values, read as they were written: the library's own reader changes the last digit of numbers."""

    def decode_example(self, example_data: str | None, token_per_repo_id: Any = None) -> Any:
        return None if example_data is None else json.loads(example_data)


def make_dataset(columns: Mapping[str, Sequence[Any]], where: str) -> Any:
    """A dataset of these columns; ``InputError`` for a column of several kinds.

    Arrow gives every object the keys of all others, and makes 2 beside 2.5 a 2.0. Such a column holds JSON.

    >>> rows = make_dataset({"call": [{"x": 1}, {"y": 2.5}]}, "rows.jsonl")
    >>> rows["call"][:]
    [{'x': 1}, {'y': 2.5}]
    """
    arrays = {name: _array(name, [*values], where) for name, values in columns.items()}
    return _exact(datasets.Dataset(pa.table(arrays)))


def with_column(rows: Any, name: str, values: Sequence[Any], where: str) -> Any:
    """The rows with one column more, or with another in its place."""
    names: list[str] = [*dict.fromkeys([*rows.column_names, name])]
    kept = rows.select_columns([each for each in names if each != name])
    try:
        made = make_dataset({name: values}, where)
    except TypeError:  # images are no JSON
        made = datasets.Dataset.from_dict({name: [*values]})
    parts = [kept, made] if kept.column_names else [made]
    return _exact(datasets.concatenate_datasets(parts, axis=1).select_columns(names))


def holds_json(rows: Any, name: str) -> bool:
    """Whether a column holds JSON, so that no value has keys of another one."""
    return isinstance(rows.features[name], datasets.Json)


def _exact(rows: Any) -> Any:
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Json):
            rows.info.features[name] = ExactJson()
    return rows


def _array(name: str, values: list[Any], where: str) -> Any:
    kinds = {*map(type, values)} - {type(None)}
    if len(kinds) > 1 and kinds != {int, float}:
        found = " beside ".join(sorted(kind.__name__ for kind in kinds))
        best = "messages" if name == "prompt" else "text"
        raise InputError(
            f"dataset: {where}: column {name!r}: {found}; write all its values alike, best as {best}"
        )
    try:
        array = pa.array(values)
        if kinds <= {str, bool, int} or repr(array.to_pylist()) == repr(values):
            return array
    except (ValueError, TypeError, OverflowError):  # objects of several kinds inside
        pass
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.json_())
