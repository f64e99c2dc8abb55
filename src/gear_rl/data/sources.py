"""Where rows come from: the arena, reasoning-gym, verifiers, files, folders and the hub. Reads; checks nothing.

Text files are read by ``lines``, everything else by the ``datasets`` library; the error messages are ours.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gear_rl.arena.task import Task, dataset_task, get_task
from gear_rl.data.lines import Unreadable, read_lines
from gear_rl.errors import InputError, did_you_mean

log = logging.getLogger(__name__)

NO_ROWS = "has no rows; give at least as many as one batch takes"
FILE_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_TEXT_KINDS = (".jsonl", ".json", ".csv")
"""What we read ourselves: ``datasets`` would guess at numbers, dates and missing values."""
_SAVED_MARKS = ("dataset_dict.json", "state.json")
"""One of these files lies in every folder that ``save_to_disk`` wrote."""
_GENERATED = (4096, 512)
"""Rows of a generator, for training and held out, where no limit is given."""

Rows = list[dict[str, Any]]


def is_generated(name: str) -> bool:
    """Whether a name means problems that are made, and divided into two parts by their generator.

    >>> is_generated("arena"), is_generated("reasoning-gym/chain_sum"), is_generated("openai/gsm8k")
    (True, True, False)
    """
    return name.partition("/")[0] in ("arena", "reasoning-gym", "verifiers", "word-problems")


def generated(name: str, split: str, limit: int | None) -> Any:
    """The rows of a generator, as a dataset; every split but ``train`` is the held-out part.

    >>> generated("arena/chain/easy", "test", 2).column_names
    ['prompt', 'privileged_context', 'answer']
    """
    family, _, rest = name.partition("/")
    if family == "arena":
        return _arena_rows(name, split, limit)
    from datasets import Dataset

    if family == "reasoning-gym":
        from gear_rl.data.adapters import reasoning_gym

        train = split == "train"
        count = limit or _GENERATED[0 if train else 1]
        made = _tried(lambda: reasoning_gym.rows(rest, num=count, held_out=not train))
    elif family == "word-problems":
        from gear_rl.data.word_problems import word_problems

        part = "train" if split == "train" else "test"
        count = limit or _GENERATED[0 if split == "train" else 1]
        made = _tried(lambda: word_problems(part, count, rest or None))
    else:
        from gear_rl.data.adapters import verifiers

        made = _tried(lambda: verifiers.rows(verifiers.load_taskset(rest), num=limit))
    return Dataset.from_list(made)


def read(
    name: str, config: str | None, split: str, stream: bool, csv_types: Mapping[str, str] | None = None
) -> Any:
    """The rows of a file, a folder or a hub dataset: a list for text files, else a dataset or a stream.

    The list holds pairs of a line's number and the row, or what is no row (``Unreadable``). ``csv_types`` say
    which columns of a CSV file are no text.

    >>> read("missing.jsonl", None, "train", stream=False)
    Traceback (most recent call last):
    gear_rl.errors.InputError: dataset: missing.jsonl does not exist
    """
    path, types = Path(name), dict(csv_types or {})
    if path.suffix in FILE_KINDS or path.is_file():
        return _file(path, stream, types)
    if path.is_dir():
        return _folder(path, config, split, stream, types)
    try:
        return _load(name, config, split, stream)
    except Exception as error:
        raise InputError(
            f"dataset: {name!r} is no local path and could not be loaded from the hub: {first_line(error)}; "
            "check the name, the split and the connection"
        ) from None


def splits_of(name: str, config: str | None) -> list[str]:
    """The splits that a folder or a hub dataset has; a file has ``train`` alone, a generator two.

    >>> splits_of("arena", None), splits_of("rows.jsonl", None)
    (['train', 'test'], ['train'])
    """
    import datasets

    path = Path(name)
    if is_generated(name):
        return ["train"] if name.startswith("verifiers/") else ["train", "test"]
    if path.suffix in FILE_KINDS or path.is_file():
        return ["train"]
    try:
        if any((path / mark).is_file() for mark in _SAVED_MARKS):
            saved = datasets.load_from_disk(name)
            return [str(split) for split in saved] if isinstance(saved, dict) else ["train"]
        return datasets.get_dataset_split_names(name, config)
    except Exception as error:
        raise InputError(f"dataset: the splits of {name!r} could not be read: {first_line(error)}") from None


def _rows_of_stream(paths: list[Path], csv_types: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The rows alone; each other line is a warning, since a stream cannot return it."""
    for path in paths:
        for _, line in read_lines(path, csv_types):
            if isinstance(line, Unreadable):
                _warn_of(path, line)
            else:
                yield line


@lru_cache(maxsize=4096)
def _warn_of(path: Path, line: Unreadable) -> None:
    """Once, though a stream is read from its beginning again and again."""
    log.warning("dataset: %s, line %d: %s; left out", path, line.number, line.reason)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type.

    >>> first_line(ValueError("no such split\\nmore")), first_line(KeyError())
    ('no such split', 'KeyError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def _arena_rows(name: str, split: str, limit: int | None) -> Any:
    from datasets import Dataset

    task, tier = dataset_task(name)
    chosen = get_task(task)
    if tier not in chosen.budgets:
        raise InputError(
            f"dataset: the arena's {task} has no tier {tier!r}; {did_you_mean(tier, chosen.budgets)}"
        )
    train = split == "train"
    most = _GENERATED[0 if train else 1]
    first = chosen.held_out.stop if train else chosen.held_out.start
    return Dataset.from_list(_arena_problems(chosen, tier, min(limit or most, most), first))


@lru_cache(maxsize=4)
def _arena_problems(task: Task, tier: str, num: int, first_seed: int) -> Rows:
    """Kept: `gear score` makes a trainer per method, and thousands of problems take longer than its replay."""
    return task.rows(tier, num=num, first_seed=first_seed)


def _tried(make: Callable[[], Rows]) -> Rows:
    try:
        return make()
    except (ValueError, ImportError) as error:
        raise InputError(f"dataset: {error}") from None


def _load(name: str, config: str | None, split: str, stream: bool) -> Any:
    """The one way to the hub. A CSV column is text there too, unless the dataset's card declares another type."""
    import datasets

    builder: Any = datasets.load_dataset_builder(name, config)
    text: dict[str, Any] = {"dtype": str, "keep_default_na": False} if builder.name == "csv" else {}
    return datasets.load_dataset(name, config, split=split, streaming=stream, **text)


def _folder(path: Path, config: str | None, split: str, stream: bool, csv_types: dict[str, str]) -> Any:
    import datasets

    if any((path / mark).is_file() for mark in _SAVED_MARKS):
        loaded: Any = datasets.load_from_disk(str(path))
        if isinstance(loaded, dict) and split not in loaded:
            raise InputError(f"dataset: {path} has no split {split!r}; {did_you_mean(split, loaded)}")
        loaded = loaded[split] if isinstance(loaded, dict) else loaded
        return loaded.to_iterable_dataset() if stream else loaded
    try:
        builder: Any = datasets.load_dataset_builder(str(path), config)
        files = [Path(file) for file in (builder.config.data_files or {}).get(split, ())]
        if builder.config.features is None and files and all(file.suffix in _TEXT_KINDS for file in files):
            return _text_files(files, stream, csv_types)
        return _load(str(path), config, split, stream)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"dataset: {path} is no saved dataset, and datasets cannot load the folder: {first_line(error)}"
        ) from None


def _file(path: Path, stream: bool, csv_types: dict[str, str]) -> Any:
    import datasets

    if not path.exists():
        raise InputError(f"dataset: {path} does not exist")
    kind = FILE_KINDS.get(path.suffix)
    if kind is None:
        raise InputError(f"dataset: {path} is none of {', '.join(FILE_KINDS)}; convert it, or give a folder")
    if path.stat().st_size == 0:
        raise InputError(f"dataset: {path} {NO_ROWS}")
    if path.suffix in _TEXT_KINDS:
        return _text_files([path], stream, csv_types)
    try:
        return datasets.load_dataset(kind, data_files=str(path), split="train", streaming=stream)
    except Exception as error:
        raise InputError(
            f"dataset: {path} cannot be read as {kind}: {first_line(error.__cause__ or error)}"
        ) from None


def _text_files(paths: list[Path], stream: bool, csv_types: dict[str, str]) -> Any:
    import datasets

    if stream:
        given = {"paths": paths, "csv_types": csv_types}
        return datasets.IterableDataset.from_generator(_rows_of_stream, gen_kwargs=given)
    numbered = [(path, *line) for path in paths for line in read_lines(path, csv_types)]
    return [(number, _of_file(path, line) if len(paths) > 1 else line) for path, number, line in numbered]


def _of_file(path: Path, line: dict[str, Any] | Unreadable) -> dict[str, Any] | Unreadable:
    return replace(line, reason=f"{path.name}: {line.reason}") if isinstance(line, Unreadable) else line
