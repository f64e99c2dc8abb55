"""Datasets by name: columns as the run wants them, bad rows set aside, held-out rows kept apart."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from gear_rl.data.columns import mapped_dataset, mapped_rows
from gear_rl.data.kinds import as_dataset
from gear_rl.data.lines import Unreadable
from gear_rl.data.prompts import checksum, prompt_fault
from gear_rl.data.quarantine import Gate, Quarantine
from gear_rl.data.sources import (
    NO_ROWS,
    Rows,
    generated,
    is_generated,
    read,
    splits_of,
)
from gear_rl.errors import InputError

_KNOWN = "its prompt is among the held-out rows"


def load_rows(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    columns: dict[str, str] | None = None,
    csv_types: dict[str, str] | None = None,
    chat: bool,
    stream: bool = False,
    held_out: int | float | None = None,
    quarantine: Path | None = None,
    limit: int | None = None,
) -> Any:
    """The dataset that a name or a path means, with the columns mapped and plain prompts as chat messages.

    Rows without a usable prompt are left out, counted in one warning, and written to ``quarantine``. With
    ``held_out`` the held-out rows are left out as well. ``limit`` takes the first rows of what remains. With
    ``stream`` rows are read when they are needed, and ``limit`` makes a dataset of fixed size of them. The cells
    of a CSV file are text, but for the columns that ``csv_types`` declares (``{"level": "int"}``).

    >>> load_rows("arena/chain/easy", chat=True, limit=2)[0]["answer"]
    '43'
    """
    types = csv_types or {}
    wanted = _Wanted(name, split, config, columns or {}, types, chat, stream, quarantine, limit, held_out)
    return wanted.parts()[0]


def load_splits(
    name: str,
    *,
    split: str = "train",
    eval_split: str = "test",
    config: str | None = None,
    columns: dict[str, str] | None = None,
    csv_types: dict[str, str] | None = None,
    chat: bool,
    stream: bool = False,
    held_out: int | float | None = None,
    quarantine: Path | None = None,
    limit: int | None = None,
) -> tuple[Any, Any | None]:
    """The rows to train on and the held-out ones, which share no prompt; no held-out rows without ``held_out``.

    A dataset that has the split ``eval_split`` gives the held-out rows from there (a count takes the first, a
    share all), and its training rows whose prompt is among them are left out. Otherwise rows are taken away from
    the training split by the sha256 of the prompt's text, white space aside: a share below 1 takes each prompt
    whose checksum is in that part of the range, a count those with the smallest checksums. The same prompt
    always falls on the same side, wherever it stands, so duplicates never come apart and the same data give the
    same rows. A prompt that occurs more than once is taken with all its rows: a count may be exceeded.

    >>> [len(part) for part in load_splits("arena/chain/easy", chat=True, held_out=8, limit=32)]
    [32, 8]
    """
    types = csv_types or {}
    wanted = _Wanted(name, split, config, columns or {}, types, chat, stream, quarantine, limit, held_out)
    if held_out is None:
        return wanted.parts()
    _check_held_out(held_out)
    if eval_split == split or eval_split not in splits_of(name, config):
        return wanted.parts()
    first = held_out if isinstance(held_out, int) else None
    test = replace(wanted, split=eval_split, stream=False, held_out=None, limit=first).parts()[0]
    known = frozenset(map(checksum, _column(test, "prompt")))
    return replace(wanted, held_out=None, known=known).parts()[0], test


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which rows, and in what form."""

    name: str
    split: str
    config: str | None
    columns: dict[str, str]
    csv_types: dict[str, str]
    chat: bool
    stream: bool
    quarantine: Path | None
    limit: int | None
    held_out: int | float | None
    known: frozenset[float] = frozenset()
    """Checksums of prompts that are left out: those of held-out rows from elsewhere."""

    def parts(self) -> tuple[Any, Any | None]:
        """The rows to keep, and those that ``held_out`` takes away."""
        _check_held_out(self.held_out)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit: {self.limit} must be 1 or more; leave it out for all rows")
        aside = Quarantine(self.name, self.split, self.quarantine)
        if self.stream and not is_generated(self.name):
            kept, out = self._divide_stream(self._read(aside), aside)
        else:
            kept, out = self._divide(self._read(aside), aside)
        if self.limit is not None:
            kept = kept.take(self.limit)
            if self.stream and not is_generated(self.name):
                kept = as_dataset(list(kept), self.name)
        return _as_chat(kept, self.chat), None if out is None else _as_chat(out, self.chat)

    def _read(self, aside: Quarantine) -> Any:
        """A list, a dataset or a stream, with the columns mapped; lines that are no rows are set aside."""
        if is_generated(self.name):
            rows = generated(self.name, self.split, self.limit)
        else:
            rows = read(self.name, self.config, self.split, self.stream, self.csv_types)
        if not isinstance(rows, list):
            return mapped_dataset(rows, self.name, self.columns)
        readable: list[tuple[int, dict[str, Any]]] = []
        for number, row in cast(list[tuple[int, Any]], rows):
            if isinstance(row, Unreadable):
                aside.add(number, {"line": row.text}, row.reason, line=number)
            else:
                readable.append((number, row))
        if not readable:
            why = f"; {aside.first}: {next(iter(aside.reasons))}" if aside.first else ""
            raise InputError(f"dataset: {self.name} {NO_ROWS}{why}")
        aside.lines = [number for number, _ in readable]
        return mapped_rows([row for _, row in readable], self.name, self.columns)

    def _divide(self, rows: Any, aside: Quarantine) -> tuple[Any, Any | None]:
        """Check every prompt, and divide rows that are all there."""
        places = self._places(rows, aside)
        train, test = list(places), list[int]()
        if self.held_out is not None:
            edge = self.held_out if isinstance(self.held_out, float) else _edge(places, self.held_out)
            train = [index for index, place in places.items() if place >= edge]
            test = [index for index, place in places.items() if place < edge]
            if not train or not test:
                raise InputError(
                    f"held_out: {self.held_out} of {self.name} leaves {len(train)} rows to train on and "
                    f"{len(test)} held out; give another count or share"
                )
        if isinstance(rows, list):
            # Together, so that both parts have the same columns and types.
            lines = [cast(list[int], aside.lines)[index] for index in places]
            rows = as_dataset([cast(Rows, rows)[index] for index in places], self.name, lines)
            position = {index: new for new, index in enumerate(places)}
            train, test = [position[index] for index in train], [position[index] for index in test]
        kept = rows if len(train) == len(rows) else rows.select(train)
        return kept, None if self.held_out is None else rows.select(test)

    def _places(self, rows: Any, aside: Quarantine) -> dict[int, float]:
        """The usable rows, each with its prompt's checksum where one is needed; the others are set aside."""
        places: dict[int, float] = {}
        total = aside.reasons.total()
        for index, prompt in enumerate(_column(rows, "prompt")):
            total += 1
            reason = prompt_fault(prompt)
            needed = reason is None and (self.known or self.held_out is not None)
            place = checksum(prompt) if needed else 0.0
            if reason is None and place in self.known:
                reason = _KNOWN
            if reason is None:
                places[index] = place
            else:
                aside.add(index, rows[index], reason)
        if not total:
            raise InputError(f"dataset: {self.name} {NO_ROWS}")
        if not places:
            raise InputError(
                f"dataset: none of the {total} rows of {self.name} can be used: {next(iter(aside.reasons))}"
            )
        aside.report(total)
        return places

    def _divide_stream(self, rows: Any, aside: Quarantine) -> tuple[Any, Any | None]:
        """The same for rows that come later: a share can be taken row by row, a count cannot."""
        if isinstance(self.held_out, int):
            raise InputError(
                f"held_out: {self.held_out} rows cannot be counted off a stream; give a share such as 0.01"
            )
        edge = self.held_out or 0.0

        def train(prompt: Any) -> str | None:
            place = checksum(prompt)
            return _KNOWN if place in self.known else "" if place < edge else None

        def test(prompt: Any) -> str | None:
            return None if checksum(prompt) < edge else ""

        parts = [rows.filter(Gate(aside, keep), with_indices=True) for keep in (train, test)]
        # Read up to the first usable row, so that a wrong column is an error before a model is loaded.
        if next(iter(parts[0]), None) is None:
            why = next(iter(aside.reasons), None)
            name = self.name
            raise InputError(
                f"dataset: no row of {name} can be used: {why}" if why else f"dataset: {name} {NO_ROWS}"
            )
        return parts[0], parts[1] if self.held_out is not None else None


def _edge(places: Mapping[int, float], count: int) -> float:
    """Just above the ``count``-th smallest checksum; a prompt's every row counts."""
    ordered = sorted(places.values())
    if count >= len(ordered):
        return 1.0
    return next((place for place in ordered[count:] if place > ordered[count - 1]), 1.0)


def _check_held_out(held_out: int | float | None) -> None:
    if held_out is None:
        return
    right = held_out >= 1 if isinstance(held_out, int) else 0.0 < held_out < 1.0
    if isinstance(held_out, bool) or not right:
        raise InputError(f"held_out: {held_out} is neither a count of rows nor a share between 0 and 1")


def _column(rows: Any, name: str) -> Iterable[Any]:
    if isinstance(rows, list):
        return (row.get(name) for row in cast(Rows, rows))
    return (value for batch in rows.select_columns(name).iter(batch_size=1000) for value in batch[name])


def _as_chat(rows: Any, chat: bool) -> Any:
    import datasets

    first = next(iter(rows), None)
    if not chat or first is None or not isinstance(first["prompt"], str):
        return rows
    if isinstance(rows, datasets.IterableDataset):
        return rows.map(_as_message)
    if len(rows) < 20_000:
        datasets.disable_progress_bars()  # a bar is for work that one waits for
    rows = rows.map(_as_message)
    datasets.enable_progress_bars()
    return rows


def _as_message(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": row["prompt"]}]}
