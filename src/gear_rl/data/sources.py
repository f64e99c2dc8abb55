"""Where rows come from: the arena, reasoning-gym, verifiers, a function, files, folders and the hub."""

import csv
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from gear_rl.arena.task import Task, dataset_task, get_task
from gear_rl.errors import InputError, did_you_mean, error_text, input_errors
from gear_rl.user_objects import import_object

_TABLES = {".csv": ",", ".tsv": "\t"}
_TEXT_KINDS = (".jsonl", ".json", *_TABLES)
FILE_KINDS = (*_TEXT_KINDS, ".parquet")
"""Text, also as ``.gz``, is read here: `datasets` turns ``007`` into 7, and what looks like a date into one."""
_ONE_OBJECT = re.compile(rb"[\xef\xbb\xbf\s]*+\{[ \t\r]*\n")
_BLANK = b"\xef\xbb\xbf \t\r\n"
_GENERATED = {True: 4096, False: 512}
"""Rows of a generator without a limit, to train on and held out."""


def is_generated(name: str) -> bool:
    """Whether a generator makes the rows.

    >>> is_generated("arena"), is_generated("mine.problems:rows"), is_generated("openai/gsm8k")
    (True, True, False)
    """
    return name.partition("/")[0] in ("arena", "reasoning-gym", "verifiers") or _is_function(name)


def _is_function(name: str) -> bool:
    return re.fullmatch(r"[\w.]+:\w+", name) is not None


def read(name: str, config: str | None, split: str, *, limit: int | None = None) -> Any:
    """The rows of a generator, a file, a folder or a hub dataset.

    A generator gives ``limit`` rows, of its held-out part for every split but ``train``. ``InputError`` for rows
    that cannot be loaded, and for a part of a split of anything but the hub's.

    >>> read("arena/chain/easy", None, "test", limit=2).column_names
    ['prompt', 'privileged_context', 'answer']
    >>> read("missing.jsonl", None, "train")
    Traceback (most recent call last):
    gear_rl.errors.InputError: dataset: missing.jsonl does not exist
    """
    import datasets

    if "[" in split and (is_generated(name) or is_file(name) or _is_saved(name)):
        raise InputError(f"dataset: {name} has no split {split!r}; only the hub's datasets have such parts")
    if is_generated(name):
        return _generated_rows(name, split == "train", limit)
    if is_file(name) and split != "train":
        raise InputError(
            f"dataset: {name} has no split {split!r}: a file has only 'train'; leave the split out"
        )
    try:
        if is_file(name):
            return _file(Path(name))
        if not _is_saved(name):
            return _load(name, config, split)
        saved: Any = datasets.load_from_disk(name)
        if not isinstance(saved, dict):
            return saved
        if split not in saved:
            raise InputError(f"dataset: {name} has no split {split!r}; {did_you_mean(split, saved)}")
        return saved[split]
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"dataset: {name!r} cannot be loaded: {_first_line(error.__cause__ or error)}; check the name, the "
            "split and the connection"
        ) from None


def splits_of(name: str, config: str | None) -> list[str]:
    """The splits of a dataset; a file has only ``train``.

    >>> splits_of("arena", None), splits_of("rows.jsonl", None)
    (['train', 'test'], ['train'])
    """
    import datasets

    if is_generated(name):
        return ["train"] if name.startswith("verifiers/") else ["train", "test"]
    if _is_saved(name):
        saved = datasets.load_from_disk(name)
        return [str(split) for split in saved] if isinstance(saved, dict) else ["train"]
    return ["train"] if is_file(name) else datasets.get_dataset_split_names(name, config)


def _kind(path: Path) -> str:
    """The suffix of a file, before ``.gz``, in small letters."""
    small = Path(path.name.lower())
    return Path(small.stem).suffix if small.suffix == ".gz" else small.suffix


def is_file(name: str) -> bool:
    """Whether a name is a file's, which need not exist.

    >>> is_file("rows.jsonl.gz"), is_file("openai/gsm8k")
    (True, False)
    """
    return _kind(Path(name)) in FILE_KINDS or Path(name).is_file()


def _is_saved(name: str) -> bool:
    """Whether `save_to_disk` wrote the folder."""
    return any((Path(name) / mark).is_file() for mark in ("dataset_dict.json", "state.json"))


def read_text(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a JSON or CSV file as written, each with the line on which it ends.

    A CSV cell is text. A ``.json`` file holds a list of objects (whose line is 0) or one object per line.
    ``InputError`` names the line of a damaged row.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile(suffix=".csv") as file:
    ...     _ = file.write(b"prompt,answer\\na,007\\nb\\n"), file.flush()
    ...     rows = read_text(Path(file.name))
    ...     print(next(rows))
    ...     next(rows)
    Traceback (most recent call last):
    gear_rl.errors.InputError: ...csv, line 3: not as many values as columns
    """
    content, number, separator = path.read_bytes(), 0, _TABLES.get(_kind(path))

    def lines() -> Iterator[str]:
        nonlocal number
        for line in io.BytesIO(content):
            number += 1
            yield line.decode("utf-8-sig")

    try:
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
        if separator is not None:
            csv.field_size_limit(2**31 - 1)
            rows: Any = csv.DictReader(lines(), strict=True, delimiter=separator)
            if twice := [name for name, count in Counter(rows.fieldnames).items() if name and count > 1]:
                raise ValueError(f"two columns are called {twice[0]!r}; rename one")
        elif _ONE_OBJECT.match(content):
            raise ValueError("an object over several lines; write a list of objects, or each on one line")
        elif _kind(path) == ".json" and content.lstrip(_BLANK)[:1] == b"[":
            rows = iter(_parse_json(content.decode("utf-8-sig")))
        else:
            rows = (_parse_json(line) for line in map(str.strip, lines()) if line)
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, found {type(row).__name__}")
            if separator is not None and (None in row or None in row.values()):
                raise ValueError("not as many values as columns")
            yield number, row
    except (ValueError, RecursionError, csv.Error, OSError, EOFError) as error:
        line = max(number, getattr(error, "lineno", 0))
        place = f", line {line}" if line else ""  # unknown inside a JSON list
        raise InputError(f"{path}{place}: {getattr(error, 'msg', error)}") from None


def _parse_json(text: str) -> Any:
    """Parse JSON. Raises ``ValueError`` for half a character, which ``json`` accepts."""
    value = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _text_files(paths: list[Path]) -> Any:
    """The rows of JSON or CSV files with the columns of all; ``InputError`` for a column of several kinds."""
    from gear_rl.data.columns import make_dataset

    return make_dataset(_columns_of([row for path in paths for _, row in read_text(path)]), str(paths[0]))


def _columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(key for row in rows for key in row)  # the first row need not have all
    return {name: [row.get(name) for row in rows] for name in names}


def check_exists(name: str) -> None:
    """Raise ``InputError`` for a file that is not there; reads nothing."""
    if not is_generated(name) and is_file(name) and not Path(name).exists():
        raise InputError(f"dataset: {name} does not exist")


def _file(path: Path) -> Any:
    import datasets

    check_exists(str(path))
    if _kind(path) not in FILE_KINDS:
        raise InputError(f"dataset: {path} is none of {', '.join(FILE_KINDS)}; convert it, or give a folder")
    if _kind(path) in _TEXT_KINDS:
        return _text_files([path])
    return datasets.load_dataset("parquet", data_files=str(path), split="train")


def _load(name: str, config: str | None, split: str) -> Any:
    """A folder or a hub dataset; a CSV column is text there too, unless the dataset's card declares its type."""
    import datasets

    builder: Any = datasets.load_dataset_builder(name, config)
    files = [Path(file) for file in (builder.config.data_files or {}).get(split, ())]
    are_text = [file.is_file() and _kind(file) in _TEXT_KINDS for file in files]
    if builder.config.features is None and files and all(are_text):
        return _text_files(files)
    text: dict[str, Any] = {"dtype": str, "keep_default_na": False} if builder.name == "csv" else {}
    return datasets.load_dataset(name, config, split=split, **text)


def _generated_rows(name: str, train: bool, limit: int | None) -> Any:
    from datasets import Dataset

    family, _, rest = name.partition("/")
    count = limit or _GENERATED[train]
    if _is_function(name):
        return _rows_of_function(name, "train" if train else "test", count)
    with input_errors("dataset: "):
        if family == "arena":
            task, tier = dataset_task(name)
            made = _arena_rows(get_task(task), tier, min(count, _GENERATED[train]), train)
        elif family == "reasoning-gym":
            from gear_rl.data.adapters import reasoning_gym

            made = reasoning_gym.rows(rest, num=count, held_out=not train)
        else:
            from gear_rl.data.adapters import verifiers

            made = verifiers.rows(verifiers.load_taskset(rest), num=limit)
    return Dataset.from_list(made)


def _rows_of_function(name: str, part: str, count: int) -> Any:
    """The rows that the user's function makes, with the values as they are."""
    from datasets import Dataset

    from gear_rl.data.columns import make_dataset

    function = import_object(name, "dataset")
    try:
        made = [*function(part, count)]
    except Exception as error:
        raise InputError(f"dataset: {name} fails: {error_text(error)}") from error
    odd = [row for row in made if not isinstance(row, dict)]
    if odd:
        raise InputError(f"dataset: {name} gave {odd[0]!r:.60}; return a list of rows, each a dict")
    columns = _columns_of(made)
    try:
        return make_dataset(columns, name)
    except TypeError:  # arrays and images, which are no JSON
        return Dataset.from_dict(columns)


@lru_cache(maxsize=4)
def _arena_rows(task: Task, tier: str, num: int, train: bool) -> list[dict[str, Any]]:
    """Cached: `gear compare` makes a trainer for every run."""
    if tier not in task.budgets:
        raise InputError(
            f"dataset: the arena's {task.name} has no tier {tier!r}; {did_you_mean(tier, task.budgets)}"
        )
    return task.rows(tier, num=num, first_seed=task.held_out.stop if train else task.held_out.start)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
