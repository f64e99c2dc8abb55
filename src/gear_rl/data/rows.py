"""Datasets by name: renamed columns, unusable prompts left out, held-out rows split off."""

import hashlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gear_rl.data.rewards.text import value_at
from gear_rl.data.sources import read, splits_of
from gear_rl.environments import texts_of
from gear_rl.errors import InputError, did_you_mean
from gear_rl.files import without_null

log = logging.getLogger(__name__)

_MESSAGES_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:""")


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
    from gear_rl.data.columns import holds_json, with_column

    rows = _with_columns(read(name, config, split, limit=limit), name, columns or {})
    given = rows["prompt"][:]
    images = not {"image", "images"}.isdisjoint(rows.column_names)
    faults = [prompt_fault(prompt, images) for prompt in given]
    prompts = [
        [{"role": "user", "content": each}] if chat and isinstance(each, str) else each for each in given
    ]
    if not holds_json(rows, "prompt"):
        prompts = [
            _own_arguments(each) if why is None else each for each, why in zip(prompts, faults, strict=True)
        ]
    if prompts != given:
        rows = with_column(rows, "prompt", prompts, name)
    rows = _leave_out_rows(rows, name, faults)
    return rows if limit is None else rows.take(limit)


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
        return _leave_out_rows(
            rows, name, ["prompt held out" if place in known else None for place in places]
        ), test
    if len(set(places)) == 1 < len(places):
        raise InputError(
            f"held_out: all {len(places)} rows of {name} have one prompt; give an eval_dataset instead"
        )
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


def prompt_fault(prompt: Any, images: bool = True) -> str | None:
    """The fault of a prompt; None for text or chat messages whose last question is not empty and not answered.

    Without ``images`` in the row, a block of an image has to hold it.

    >>> prompt_fault("2 + 2"), prompt_fault(" "), prompt_fault(7), prompt_fault([{"role": "user"}])
    (None, 'prompt is empty', 'prompt is neither text nor messages but int', 'prompt is empty')
    """
    if not prompt:
        return "prompt is missing" if prompt is None else "prompt is empty"
    if isinstance(prompt, str):
        if _MESSAGES_TEXT.match(prompt):
            return "prompt is messages as JSON text; store the list itself"
        return None if prompt.strip() else "prompt is empty"
    if not isinstance(prompt, list):
        return f"prompt is neither text nor messages but {type(prompt).__name__}"
    if all(isinstance(each, Mapping) and "from" in each for each in prompt):
        return "prompt is in ShareGPT's form; write role and content for from and value, user for human"
    if not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in prompt):
        return "prompt holds a message without a role"
    contents = [message.get("content") for message in prompt]  # text, or blocks: an image is content too
    for each in contents:
        if not isinstance(each, str | list | None):
            return f"prompt holds a message whose content is {type(each).__name__}"
        blocks = [block for block in each or () if isinstance(block, Mapping)]
        if not images and any(
            block.get("type") == "image" and block.get("image") is None for block in blocks
        ):
            return "prompt has an image block without an image; give the column images"
    if prompt[-1]["role"] == "assistant":
        return (
            "prompt ends with the assistant's answer, which the student would see; if its column is messages, "
            "--columns.prompt messages.:-1 --columns.solution messages.-1.content part them"
        )
    asked = [message.get("content") for message in prompt if message["role"] == "user"][-1:] or contents
    return "prompt is empty" if all(map(_is_blank, asked)) else None


def _is_blank(content: Any) -> bool:
    """Whether a message says nothing: no text but white space, and no image."""
    if isinstance(content, list):
        return all(map(_is_blank, content))
    if isinstance(content, Mapping) and content.get("type") == "text":
        content = content.get("text")
    return not (content.strip() if isinstance(content, str) else content)


def _own_arguments(prompt: Any) -> Any:
    """The prompt, its calls without the arguments of other rows' calls, which a table fills in with null."""
    if isinstance(prompt, str) or not any(message.get("tool_calls") for message in prompt):
        return prompt
    return [{**message, "tool_calls": without_null(message.get("tool_calls"))} for message in prompt]


def _with_columns(rows: Any, name: str, columns: Mapping[str, str]) -> Any:
    """The rows with renamed columns; a value inside a column becomes a column of its own."""
    from gear_rl.data.columns import with_column

    present: list[str] = rows.column_names
    if not len(rows):
        raise InputError(f"dataset: {name} has no rows; give at least as many as one batch takes")
    if "prompt" not in present and "prompt" not in columns:
        raise InputError(
            f"dataset: {name} has no column 'prompt', only {', '.join(present)}; name yours with "
            "--columns.prompt COLUMN"
        )
    moved, copied = dict[str, str](), dict[str, list[Any]]()
    for new, old in columns.items():
        top, _, rest = old.partition(".")
        if new in present and old != new and new not in columns.values():
            raise InputError(
                f"columns.{new}: {name} has a column of that name already; rename that one too, as "
                f"--columns.old_{new} {new}"
            )
        if old not in present and (top not in present or not rest):
            raise InputError(f"columns.{new}: {name} has no column {old!r}; {did_you_mean(old, present)}")
        if old in present and old not in moved:
            moved[old] = new
        else:
            top = old if old in present else top
            copied[new] = [value_at({top: value}, old) for value in rows[top][:]]
            if all(value is None for value in copied[new]):
                first = rows[0][top]
                raise InputError(
                    f"columns.{new}: no row of {name} has {old!r}; {top!r} of the first is {first!r:.200}"
                )
    rows = rows.rename_columns(moved)
    for new, values in copied.items():
        rows = with_column(rows, new, values, name)
    for given in {"prompts", "completions"} & {*rows.column_names}:
        raise InputError(
            f"dataset: {name} has a column {given!r}, which is an argument of every reward; rename it with "
            f"--columns.NAME {given}"
        )
    return rows


def _leave_out_rows(rows: Any, name: str, faults: Sequence[str | None]) -> Any:
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
