"""Datasets by name: renamed columns, unusable prompts left out, held-out rows split off."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownLambdaType=false

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from gear_rl.data.rewards.text import dotted
from gear_rl.data.sources import read, splits_of
from gear_rl.environments import texts_of
from gear_rl.errors import InputError, did_you_mean

log = logging.getLogger(__name__)


def load_rows(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    columns: Mapping[str, str] | None = None,
    chat: bool,
    limit: int | None = None,
) -> Any:
    """The dataset of a name or a path, with columns renamed and, with ``chat``, text prompts as messages.

    ``columns`` maps a new name to a column or a dotted path into one. Rows without a usable prompt are left out
    with one warning. ``limit`` takes the first of the others.

    >>> load_rows("arena/chain/easy", chat=True, limit=2)[0]["answer"]
    '43'
    """
    rows = _with_columns(read(name, config, split, limit=limit), name, columns or {})
    rows = _without(rows, name, [prompt_fault(prompt) for prompt in rows["prompt"][:]])
    rows = rows if limit is None else rows.take(limit)
    if not chat or not isinstance(rows[0]["prompt"], str):
        return rows
    return rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})


def load_splits(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    columns: Mapping[str, str] | None = None,
    chat: bool,
    held_out: int | float | None = None,
) -> tuple[Any, Any | None]:
    """The rows to train on and ``held_out`` rows (a count or a share) that share no prompt with them.

    If the dataset has a split ``test``, a count takes its first rows, a share all of it. Otherwise the
    checksum of its prompt holds a row out, so other rows do not matter: a share takes that part of the range, a
    count the smallest checksums with all their duplicates.

    >>> [len(part) for part in load_splits("arena/chain/easy", chat=True, held_out=8)]
    [4096, 8]
    """
    load = partial(load_rows, name, config=config, columns=columns, chat=chat)
    rows = load(split=split)
    if held_out is None:
        return rows, None
    right = held_out >= 1 if isinstance(held_out, int) else 0.0 < held_out < 1.0
    if isinstance(held_out, bool) or not right:
        raise InputError(f"held_out: {held_out} is neither a count of rows nor a share between 0 and 1")
    count = held_out if isinstance(held_out, int) else None
    places = [checksum(prompt) for prompt in rows["prompt"][:]]
    if split != "test" and "test" in splits_of(name, config):
        test = load(split="test", limit=count)
        known = set(map(checksum, test["prompt"][:]))
        return _without(rows, name, ["prompt held out" if place in known else None for place in places]), test
    edge = held_out if count is None else math.nextafter(sorted(places)[:count][-1], 1.0)
    train = rows.select([index for index, place in enumerate(places) if place >= edge])
    test = rows.select([index for index, place in enumerate(places) if place < edge])
    if not len(train) or not len(test):
        raise InputError(
            f"held_out: {held_out} of {name} leaves {len(train)} rows to train on and {len(test)} held out; "
            "give another count or share"
        )
    return train, test


def checksum(prompt: Any) -> float:
    """The sha256 of a prompt's text as a number in [0, 1); white space and chat wrapping do not count.

    >>> checksum("2 + 2") == checksum([{"role": "user", "content": " 2 +\\n2"}]) != checksum("2 + 3")
    True
    """
    messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    parts = [
        [message["role"], " ".join("".join(texts_of(message.get("content"))).split())] for message in messages
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48  # 48 bits: the quotient is exact, and below 1


def prompt_fault(prompt: Any) -> str | None:
    """The fault of a prompt; None for text or chat messages that are not empty.

    >>> prompt_fault("2 + 2"), prompt_fault(" "), prompt_fault(7), prompt_fault([{"role": "user"}])
    (None, 'prompt is empty', 'prompt is neither text nor messages but int', 'prompt is empty')
    """
    if not prompt:
        return "prompt is missing" if prompt is None else "prompt is empty"
    if isinstance(prompt, str):
        return None if prompt.strip() else "prompt is empty"
    if not isinstance(prompt, list):
        return f"prompt is neither text nor messages but {type(prompt).__name__}"
    messages = cast(list[Any], prompt)
    if not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages):
        return "prompt holds a message without a role"
    contents = [message.get("content") for message in messages]  # text, or blocks: an image is content too
    for each in contents:
        if not isinstance(each, str | list | None):
            return f"prompt holds a message whose content is {type(each).__name__}"
    said = any(each.strip() if isinstance(each, str) else each for each in contents)
    return None if said else "prompt is empty"


def _with_columns(rows: Any, name: str, columns: Mapping[str, str]) -> Any:
    """The rows with renamed columns; a value inside a column becomes a column of its own."""
    present: list[str] = rows.column_names
    if not len(rows):
        raise InputError(f"dataset: {name} has no rows; give at least as many as one batch takes")
    if "prompt" not in present and "prompt" not in columns:
        raise InputError(
            f"dataset: {name} has no column 'prompt', only {', '.join(present)}; name yours with "
            "--columns.prompt COLUMN"
        )
    moved, copied = dict[str, str](), dict[str, str]()
    for new, old in columns.items():
        top, _, rest = old.partition(".")
        inner, key = rows[0].get(top), rest.partition(".")[0]
        if new in present and old != new and new not in columns.values():
            raise InputError(
                f"columns.{new}: {name} has a column of that name already; rename that one too, as "
                f"--columns.old_{new} {new}"
            )
        if old not in present and (top not in present or not rest):
            raise InputError(f"columns.{new}: {name} has no column {old!r}; {did_you_mean(old, present)}")
        if old not in present and isinstance(inner, Mapping) and key not in inner:
            raise InputError(f"columns.{new}: {top!r} of {name} has no {key!r}; {did_you_mean(key, inner)}")
        if old in present and old not in moved:
            moved[old] = new
        else:
            copied[new] = old
    if copied:
        rows = rows.map(lambda row: {new: dotted(row, old) for new, old in copied.items()})
    return rows.rename_columns(moved)


def _without(rows: Any, name: str, faults: Sequence[str | None]) -> Any:
    """The rows without a fault; one warning counts the others and names the first, from 1."""
    reasons = Counter(why for why in faults if why is not None)
    if not reasons:
        return rows
    kept = [index for index, why in enumerate(faults) if why is None]
    if not kept:
        raise InputError(
            f"dataset: none of the {len(faults)} rows of {name} can be used: {next(iter(reasons))}"
        )
    first = next(index for index, why in enumerate(faults, start=1) if why is not None)
    counts = ", ".join(f"{count} {why}" for why, count in reasons.most_common(5))
    log.warning(
        "dataset: %d of %d rows of %s are left out (%s; the first is row %d)",
        *(len(faults) - len(kept), len(faults), name, counts, first),
    )
    return rows.select(kept)
