"""Where rows come from: the arena, reasoning-gym, verifiers, files, folders and the hub. Reads; checks nothing.

Reading is the ``datasets`` library's; the error messages are ours.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from gear_rl.arena.task import Task, dataset_task, get_task
from gear_rl.errors import InputError, did_you_mean

log = logging.getLogger(__name__)

NO_ROWS = "has no rows; give at least as many as one batch takes"
FILE_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
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


def read(name: str, config: str | None, split: str, stream: bool) -> Any:
    """The rows of a file, a folder or a hub dataset: a list for JSON lines, else a dataset or a stream.

    The list also holds what is no row (``Unreadable``).

    >>> read("missing.jsonl", None, "train", stream=False)
    Traceback (most recent call last):
    gear_rl.errors.InputError: dataset: missing.jsonl does not exist
    """
    path = Path(name)
    if path.suffix in FILE_KINDS or path.is_file():
        return _file(path, stream)
    if path.is_dir():
        return _folder(path, config, split, stream)
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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line of a JSON lines file that is no row."""

    number: int
    """From 1."""
    reason: str
    text: str


def _lines(path: Path) -> Iterator[dict[str, Any] | Unreadable]:
    """The rows of a JSON lines file, and what stands between them; blank lines are passed over."""
    return (line for _, line in numbered_lines(path))


def numbered_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unreadable]]:
    """The same, each with the number of its line, from 1.

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
            if not text.strip():
                continue
            try:
                raw.decode()
                row = json.loads(text)
            except UnicodeDecodeError:
                yield number, Unreadable(number, "not UTF-8 text", text)
                continue
            except json.JSONDecodeError as error:
                yield number, Unreadable(number, f"not JSON ({error.msg}, column {error.colno})", text)
                continue
            if isinstance(row, dict):
                yield number, cast(dict[str, Any], row)
            else:
                yield number, Unreadable(number, f"expected an object, found {type(row).__name__}", text)


def _rows_of_stream(path: Path) -> Iterator[dict[str, Any]]:
    """The rows alone; each other line is a warning, since a stream cannot return it."""
    for line in _lines(path):
        if isinstance(line, Unreadable):
            log.warning("dataset: %s, line %d: %s; left out", path, line.number, line.reason)
        else:
            yield line


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
    """The one way to the hub; a local folder goes the same way."""
    import datasets

    return datasets.load_dataset(name, config, split=split, streaming=stream)


def _folder(path: Path, config: str | None, split: str, stream: bool) -> Any:
    import datasets

    if any((path / mark).is_file() for mark in _SAVED_MARKS):
        loaded: Any = datasets.load_from_disk(str(path))
        if isinstance(loaded, dict) and split not in loaded:
            raise InputError(f"dataset: {path} has no split {split!r}; {did_you_mean(split, loaded)}")
        loaded = loaded[split] if isinstance(loaded, dict) else loaded
        return loaded.to_iterable_dataset() if stream else loaded
    try:
        return _load(str(path), config, split, stream)
    except Exception as error:
        raise InputError(
            f"dataset: {path} is no saved dataset, and datasets cannot load the folder: {first_line(error)}"
        ) from None


def _file(path: Path, stream: bool) -> Any:
    import datasets

    if not path.exists():
        raise InputError(f"dataset: {path} does not exist")
    kind = FILE_KINDS.get(path.suffix)
    if kind is None:
        raise InputError(f"dataset: {path} is none of {', '.join(FILE_KINDS)}; convert it, or give a folder")
    if path.stat().st_size == 0:
        raise InputError(f"dataset: {path} {NO_ROWS}")
    if path.suffix == ".jsonl":
        if stream:
            return datasets.IterableDataset.from_generator(_rows_of_stream, gen_kwargs={"path": path})
        return list(_lines(path))
    try:
        return datasets.load_dataset(kind, data_files=str(path), split="train", streaming=stream)
    except Exception as error:
        raise InputError(
            f"dataset: {path} cannot be read as {kind}: {first_line(error.__cause__ or error)}"
        ) from None
