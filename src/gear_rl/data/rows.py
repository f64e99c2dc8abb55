"""Datasets and rewards by name: columns as the run wants them, bad rows set aside, held-out rows kept apart."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from gear_rl.data.rewards.text import content_text, dotted
from gear_rl.data.sources import (
    NO_ROWS,
    Rows,
    Unreadable,
    first_line,
    generated,
    is_generated,
    read,
    splits_of,
)
from gear_rl.errors import InputError, did_you_mean

log = logging.getLogger(__name__)


def load_rows(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    columns: dict[str, str] | None = None,
    chat: bool,
    stream: bool = False,
    held_out: int | float | None = None,
    quarantine: Path | None = None,
    limit: int | None = None,
) -> Any:
    """The dataset that a name or a path means, with the columns mapped and plain prompts as chat messages.

    Rows without a usable prompt are left out, counted in one warning, and written to ``quarantine``. With
    ``held_out`` the held-out rows are left out as well. ``limit`` takes the first rows of what remains. With
    ``stream`` rows are read when they are needed, and ``limit`` makes a dataset of fixed size of them.
    """
    kept, _ = _parts(name, split, config, columns, chat, stream, held_out, quarantine, limit)
    return kept


def load_splits(
    name: str,
    *,
    split: str = "train",
    eval_split: str = "test",
    config: str | None = None,
    columns: dict[str, str] | None = None,
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
    """
    if held_out is None:
        return _parts(name, split, config, columns, chat, stream, None, quarantine, limit)
    _check_held_out(held_out)
    if eval_split == split or eval_split not in splits_of(name, config):
        return _parts(name, split, config, columns, chat, stream, held_out, quarantine, limit)
    first = held_out if isinstance(held_out, int) else None
    test = load_rows(
        name, split=eval_split, config=config, columns=columns, chat=chat, quarantine=quarantine, limit=first
    )
    known = frozenset(map(checksum, _column(test, "prompt")))
    train, _ = _parts(name, split, config, columns, chat, stream, None, quarantine, limit, known)
    return train, test


def checksum(prompt: Any) -> float:
    """Where in [0, 1) a prompt falls, by the sha256 of its text; white space and chat wrapping do not count.

    >>> checksum("2 + 2") == checksum([{"role": "user", "content": " 2 +\\n2"}]) != checksum("2 + 3")
    True
    """
    messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    told = [[message["role"], " ".join(content_text(message.get("content")).split())] for message in messages]
    digest = hashlib.sha256(json.dumps(told).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48  # 48 bits: the quotient is exact, and below 1


def prompt_fault(prompt: Any) -> str | None:
    """What is wrong with a prompt, in a few words; None for text or chat messages that say something.

    >>> prompt_fault("2 + 2"), prompt_fault(" "), prompt_fault(7), prompt_fault([{"role": "user"}])
    (None, 'prompt is empty', 'prompt is neither text nor messages but int', 'prompt is empty')
    """
    if prompt is None:
        return "prompt is missing"
    if isinstance(prompt, str):
        return None if prompt.strip() else "prompt is empty"
    if not isinstance(prompt, list):
        return f"prompt is neither text nor messages but {type(prompt).__name__}"
    said = False
    for message in cast(list[Any], prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return "prompt holds a message without a role"
        content = message.get("content")
        if not isinstance(content, str | list | None):
            return f"prompt holds a message whose content is {type(content).__name__}"
        # An image is content too.
        said = said or bool(content_text(content).strip() if isinstance(content, str) else content)
    return None if said else "prompt is empty"


class _Quarantine:
    """Sets rows aside: each with its reason in a file, all of them in one warning."""

    def __init__(self, name: str, split: str, path: Path | None) -> None:
        self.name, self.split, self.path = name, split, path
        self.reasons = Counter[str]()
        self._seen: set[str] = set()
        self._written: set[str] | None = None

    def add(self, index: int, row: Mapping[str, Any], reason: str) -> bool:
        """Set a row aside; False if it was already, as in the second epoch of a stream."""
        entry = {"dataset": self.name, "split": self.split, "row": index, "reason": reason, "values": row}
        line = json.dumps(entry, ensure_ascii=False, default=repr)
        line = line.encode("utf-8", "replace").decode("utf-8")
        if line in self._seen:
            return False
        self._seen.add(line)
        self.reasons[reason] += 1
        # One process of a distributed run writes for all; a run that is resumed does not write a line twice.
        if self.path is not None and os.environ.get("RANK", "0") == "0":
            if self._written is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
                self._written = set(text.split("\n"))
            if line not in self._written:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(line + "\n")
        return True

    def report(self, total: int | None = None) -> None:
        count = self.reasons.total()
        if count:
            why = ", ".join(f"{number} {reason}" for reason, number in self.reasons.most_common())
            of, where = f" of {total}" if total is not None else "", f"; see {self.path}" if self.path else ""
            log.warning("dataset: %d%s rows of %s are left out (%s)%s", count, of, self.name, why, where)


class _Gate:
    """What lets the rows of a stream pass: an object with a state, called by ``IterableDataset.filter``."""

    def __init__(self, aside: _Quarantine, keep: Callable[[Any], str | None]) -> None:
        self.aside, self.keep = aside, keep

    def __call__(self, row: Mapping[str, Any], index: int) -> bool:
        reason = prompt_fault(row.get("prompt")) or self.keep(row["prompt"])
        if reason is None:
            return True
        # A stream's end is not seen from here: said at the first bad row, and whenever there are ten times more.
        if reason and self.aside.add(index, row, reason):
            count = self.aside.reasons.total()
            if count == 10 ** (len(str(count)) - 1):
                self.aside.report()
        return False


def _parts(
    name: str,
    split: str,
    config: str | None,
    columns: dict[str, str] | None,
    chat: bool,
    stream: bool,
    held_out: int | float | None,
    quarantine: Path | None,
    limit: int | None,
    known: frozenset[float] = frozenset(),
) -> tuple[Any, Any | None]:
    """The rows to keep, and those that ``held_out`` takes away; ``known`` prompts are left out of both."""
    _check_held_out(held_out)
    if limit is not None and limit < 1:
        raise InputError(f"limit: {limit} must be 1 or more; leave it out for all rows")
    made = is_generated(name)
    found = generated(name, split, limit) if made else read(name, config, split, stream)
    aside = _Quarantine(name, split, quarantine)
    if isinstance(found, list):
        found, broken = _readable(found, aside)
        if not found:
            raise InputError(f"dataset: {name} {NO_ROWS}{broken}")
        present = _names(found)
        _check_columns(name, columns or {}, present, _sample(found, columns or {}))
        found = [_mapped_row(row, columns or {}, present) for row in found]
    else:
        found = _mapped(found, name, columns or {})
    if stream and not made:
        kept, out = _divide_stream(found, name, aside, held_out, known)
    else:
        kept, out = _divide(found, name, aside, held_out, known)
    if limit is not None:
        kept = kept.take(limit)
        if stream and not made:
            import datasets

            kept = datasets.Dataset.from_list(list(kept))
    return _as_chat(kept, chat), None if out is None else _as_chat(out, chat)


def _readable(found: list[Any], aside: _Quarantine) -> tuple[Rows, str]:
    """The rows alone, with what is none set aside; and the first of those in words, for a file without a row."""
    broken = [line for line in found if isinstance(line, Unreadable)]
    for line in broken:
        aside.add(line.number, {"line": line.text}, line.reason)
    said = f"; line {broken[0].number}: {broken[0].reason}" if broken else ""
    return [line for line in found if not isinstance(line, Unreadable)], said


def _divide(
    found: Any, name: str, aside: _Quarantine, held_out: int | float | None, known: frozenset[float]
) -> tuple[Any, Any | None]:
    """Check every prompt, and divide rows that are all there."""
    import datasets

    good: list[int] = []
    places: list[float] = []
    total = aside.reasons.total()
    for index, prompt in enumerate(_column(found, "prompt")):
        total += 1
        reason = prompt_fault(prompt)
        place = checksum(prompt) if reason is None and (known or held_out is not None) else 0.0
        if reason is None and place in known:
            reason = _KNOWN
        if reason is None:
            good.append(index)
            places.append(place)
        else:
            aside.add(index, found[index], reason)
    if not total:
        raise InputError(f"dataset: {name} {NO_ROWS}")
    if not good:
        raise InputError(
            f"dataset: none of the {total} rows of {name} can be used: {next(iter(aside.reasons))}"
        )
    aside.report(total)
    edge = 0.0
    if held_out is not None:
        edge = held_out if isinstance(held_out, float) else _edge(places, held_out)
    train = [index for index, place in zip(good, places, strict=True) if held_out is None or place >= edge]
    test = [index for index, place in zip(good, places, strict=True) if held_out is not None and place < edge]
    if not train or (held_out is not None and not test):
        raise InputError(
            f"held_out: {held_out} of {name} leaves {len(train)} rows to train on and {len(test)} held out; "
            "give another count or share"
        )
    if isinstance(found, list):
        rows = cast(Rows, found)
        try:
            # Together, so that both parts have the same columns and types.
            found = datasets.Dataset.from_list([rows[index] for index in good])
        except Exception as error:
            raise InputError(
                f"dataset: {name}: a column holds values of different kinds; write them alike "
                f"({first_line(error)})"
            ) from None
        position = {index: place for place, index in enumerate(good)}
        train, test = [position[index] for index in train], [position[index] for index in test]
    whole = len(train) == len(found)
    return found if whole else found.select(train), found.select(test) if held_out is not None else None


def _divide_stream(
    found: Any, name: str, aside: _Quarantine, held_out: int | float | None, known: frozenset[float]
) -> tuple[Any, Any | None]:
    """The same for rows that come later: a share can be told of each row alone, a count cannot."""
    if isinstance(held_out, int):
        raise InputError(
            f"held_out: {held_out} rows cannot be counted off a stream; give a share such as 0.01"
        )
    edge = held_out or 0.0

    def train(prompt: Any) -> str | None:
        place = checksum(prompt)
        return _KNOWN if place in known else "" if place < edge else None

    def test(prompt: Any) -> str | None:
        return None if checksum(prompt) < edge else ""

    parts = [found.filter(_Gate(aside, keep), with_indices=True) for keep in (train, test)]
    # The stream is read up to its first usable row, so that a wrong column is found before a model is loaded.
    if next(iter(parts[0]), None) is None:
        why = next(iter(aside.reasons), None)
        raise InputError(
            f"dataset: no row of {name} can be used: {why}" if why else f"dataset: {name} {NO_ROWS}"
        )
    return parts[0], parts[1] if held_out is not None else None


_KNOWN = "its prompt is among the held-out rows"


def _edge(places: list[float], count: int) -> float:
    """Just above the ``count``-th smallest checksum; a prompt's every row counts."""
    ordered = sorted(places)
    if count >= len(ordered):
        return 1.0
    return next((place for place in ordered[count:] if place > ordered[count - 1]), 1.0)


def _check_held_out(held_out: int | float | None) -> None:
    if held_out is None:
        return
    right = held_out >= 1 if isinstance(held_out, int) else 0.0 < held_out < 1.0
    if isinstance(held_out, bool) or not right:
        raise InputError(f"held_out: {held_out} is neither a count of rows nor a share between 0 and 1")


def _column(found: Any, name: str) -> Iterable[Any]:
    if isinstance(found, list):
        return (row.get(name) for row in cast(Rows, found))
    return (value for batch in found.select_columns(name).iter(batch_size=1000) for value in batch[name])


def _names(found: Rows) -> list[str]:
    """Every column of the rows: the first need not have all."""
    return list({name: None for row in found for name in row})


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


def _sample(found: Rows, columns: Mapping[str, str]) -> dict[str, Any]:
    """A value for each column that a path goes into, from the first row that has one."""
    tops = {old.partition(".")[0] for old in columns.values()}
    return {top: next((row[top] for row in found if row.get(top) is not None), None) for top in tops}


def _mapped_row(row: Mapping[str, Any], columns: Mapping[str, str], present: list[str]) -> dict[str, Any]:
    """A row of a list under its new names; a nested value is copied out, and its column stays."""
    moved = {old for old in columns.values() if old in present}
    new = {wanted: dotted(row, old) for wanted, old in columns.items()}
    return {**{old: row.get(old) for old in present if old not in moved}, **new}


def _mapped(found: Any, name: str, columns: Mapping[str, str]) -> Any:
    """The same for a dataset or a stream."""
    sample: Mapping[str, Any] = next(iter(found), {})
    present: list[str] = list(found.column_names or sample)
    if not present:
        raise InputError(f"dataset: {name} {NO_ROWS}")
    _check_columns(name, columns, present, sample)
    renamed = {old: new for new, old in columns.items() if old != new and old in present}
    nested = {new: old for new, old in columns.items() if old not in present}
    if nested:

        def inner(row: Mapping[str, Any]) -> dict[str, Any]:
            return {new: dotted(row, old) for new, old in nested.items()}

        found = found.map(inner)
    return found.rename_columns(renamed) if renamed else found


def _as_chat(found: Any, chat: bool) -> Any:
    import datasets

    first = next(iter(found), None)
    if not chat or first is None or not isinstance(first["prompt"], str):
        return found
    if isinstance(found, datasets.IterableDataset):
        return found.map(_as_message)
    if len(found) < 20_000:
        datasets.disable_progress_bars()  # a bar is for work that one waits for
    found = found.map(_as_message)
    datasets.enable_progress_bars()
    return found


def _as_message(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": row["prompt"]}]}
