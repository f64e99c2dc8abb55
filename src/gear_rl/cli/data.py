"""Datasets and rewards by name. Reading is the ``datasets`` library's; the error messages are ours."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from gear_rl.cli.config import import_object
from gear_rl.cli.errors import InputError, did_you_mean

_NO_ROWS = "has no rows; give at least as many as one batch takes"
FILE_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def load_rows(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    columns: dict[str, str] | None = None,
    chat: bool,
) -> Any:
    """The dataset that a name or a path means, with the columns renamed and plain prompts as chat messages."""
    if name == "arena" or name.startswith("arena/"):
        return _arena_rows(name.partition("/")[2] or "default", split)
    dataset = (
        _local(Path(name), split)
        if Path(name).exists() or Path(name).suffix in FILE_KINDS
        else _hub(name, config, split)
    )
    present: list[str] = dataset.column_names
    for new, old in (columns or {}).items():
        if new in present and old != new:
            raise InputError(
                f"columns.{new}: {name} has a column of that name already; drop or rename it first"
            )
        if old not in present:
            raise InputError(f"columns.{new}: {name} has no column {old!r}; {did_you_mean(old, present)}")
    dataset = dataset.rename_columns({old: new for new, old in (columns or {}).items() if old != new})
    if "prompt" not in dataset.column_names:
        raise InputError(
            f"dataset: {name} has no column 'prompt', only {', '.join(dataset.column_names)}; name yours with "
            "--columns.prompt COLUMN"
        )
    if len(dataset) == 0:
        raise InputError(f"dataset: {name} {_NO_ROWS}")
    if chat and isinstance(dataset[0]["prompt"], str):
        import datasets

        if len(dataset) < 20_000:
            datasets.disable_progress_bars()  # a bar is for work that one waits for
        dataset = dataset.map(_as_message)
        datasets.enable_progress_bars()
    return dataset


def _as_message(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": row["prompt"]}]}


def load_reward(name: str) -> Callable[..., list[float | None]]:
    """The reward function that a name means, in TRL's signature."""
    if name == "arena":
        from gear_rl.arena.chain import chain_reward

        return cast(Callable[..., list[float | None]], chain_reward)
    if ":" in name:
        found = import_object(name, "reward")
        if not callable(found):
            raise InputError(f"reward: {name} is {type(found).__name__}, not a function")
        return cast(Callable[..., list[float | None]], found)
    import trl.rewards

    known = [word for word in dir(trl.rewards) if word.endswith("_reward")]
    if name not in known:
        choices = ["arena", *known]
        raise InputError(
            f"reward: no reward {name!r}; {did_you_mean(name, choices)}, or give package.module:object"
        )
    return getattr(trl.rewards, name)


def _arena_rows(tier: str, split: str) -> Any:
    from datasets import Dataset

    from gear_rl.arena.chain import FIRST_TRAIN_SEED, HELD_OUT, rows
    from gear_rl.arena.tiers import TIERS

    if tier not in TIERS:
        raise InputError(f"dataset: the arena has no tier {tier!r}; {did_you_mean(tier, TIERS)}")
    first, count = (FIRST_TRAIN_SEED, 4096) if split == "train" else (HELD_OUT.start, 512)
    return Dataset.from_list(rows(tier, num=count, first_seed=first))


def _local(path: Path, split: str) -> Any:
    import datasets

    if not path.exists():
        raise InputError(f"dataset: {path} does not exist")
    if path.is_dir():
        try:
            loaded: Any = datasets.load_from_disk(str(path))
        except (OSError, ValueError) as error:
            raise InputError(f"dataset: {path} is no saved dataset: {_first_line(error)}") from None
        if isinstance(loaded, dict) and split not in loaded:
            raise InputError(f"dataset: {path} has no split {split!r}; {did_you_mean(split, loaded)}")
        return loaded[split] if isinstance(loaded, dict) else loaded
    kind = FILE_KINDS.get(path.suffix)
    if kind is None:
        raise InputError(f"dataset: {path} is none of {', '.join(FILE_KINDS)}; convert it, or give a folder")
    if path.suffix == ".jsonl":
        rows = list(_lines(path))
        if not rows:
            raise InputError(f"dataset: {path} {_NO_ROWS}")
        # The first line need not have every column; from_list would look no further.
        names = {name: None for row in rows for name in row}
        try:
            return datasets.Dataset.from_list([{name: row.get(name) for name in names} for row in rows])
        except Exception as error:
            raise InputError(
                f"dataset: {path}: a column holds values of different kinds; write them alike "
                f"({_first_line(error)})"
            ) from None
    if path.stat().st_size == 0:
        raise InputError(f"dataset: {path} {_NO_ROWS}")
    try:
        return datasets.load_dataset(kind, data_files=str(path), split="train")
    except Exception as error:
        raise InputError(
            f"dataset: {path} cannot be read as {kind}: {_first_line(error.__cause__ or error)}"
        ) from None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InputError(f"{path}, line {number}: not UTF-8 text; save the file as UTF-8") from None
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: not JSON ({error.msg}, column {error.colno}); mend or delete it"
                ) from None
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number}: expected an object, found {type(row).__name__}")
            yield cast(dict[str, Any], row)


def _hub(name: str, config: str | None, split: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:
        raise InputError(
            f"dataset: {name!r} is no local path and could not be loaded from the hub: {_first_line(error)}; "
            "check the name, the split and the connection"
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
