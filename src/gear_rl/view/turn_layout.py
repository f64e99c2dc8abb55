"""The layout of a record of several turns: one line for each turn and for each tool answer."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from gear_rl.records import PER_TOKEN, Record

_MARKUP = re.compile(r"<\|[^|<>]*\|>(?:user|assistant|tool|system)?|</?tool_response>|</?think>")
"""What Qwen's chat templates put around a tool's answer."""
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


def has_turns(record: Record) -> bool:
    """Whether tools answered between the record's turns."""
    return 0 in record.mask and any(turn > 0 for turn in record.turn)


def last_user_text(prompt: str) -> str:
    """The last user message of a prompt in Qwen's chat format; another prompt is returned unchanged.

    >>> last_user_text("<|im_start|>user\\nwho?<|im_end|>\\n<|im_start|>assistant\\n"), last_user_text("who?")
    ('who?', 'who?')
    """
    said = _USER.findall(prompt)
    return said[-1] if said else prompt


def join_answers(record: Record) -> tuple[Record, list[int]]:
    """The record with each tool answer as one token without chat markup, and where its tokens were before.

    The numbers of trained tokens do not change. A record without turns is returned unchanged.
    """
    if not has_turns(record):
        return record, list(range(len(record.tokens)))
    tokens: list[str] = []
    position: list[int] = []
    for trained, group in groupby(range(len(record.tokens)), key=lambda t: record.mask[t]):
        run = list(group)
        texts = record.tokens[run[0] : run[-1] + 1]
        tokens += texts if trained else [_MARKUP.sub("", "".join(texts)).strip()]
        position += run if trained else run[:1]
    return replace(take_tokens(record, position), tokens=tokens), position


def take_tokens(record: Record, places: Sequence[int]) -> Record:
    """The record with the tokens at these places alone; a ``mistake`` is not moved."""
    kept: dict[str, Any] = {name: [getattr(record, name)[t] for t in places] for name in PER_TOKEN}
    kept["signals"] = {name: [values[t] for t in places] for name, values in record.signals.items()}
    return replace(record, **kept)


def by_turn(record: Record) -> Record:
    """``join_answers``, with each turn on its own line and the prompt's ``last_user_text``.

    A line break inside a tool call becomes ``⏎``. A record without turns is returned unchanged.
    """
    if not has_turns(record):
        return record
    joined, position = join_answers(record)
    for place, t in enumerate(position):
        before, after = "".join(record.tokens[max(t - 1, 0) : t + 1]), "".join(record.tokens[t : t + 2])
        if record.mask[t] and ("<tool_call>" in before or "</tool_call>" in after):
            joined.tokens[place] = record.tokens[t].replace("\n", "⏎")
        if joined.mask[place : place + 2] in ([0, 1], [1, 0]):
            joined.tokens[place] = joined.tokens[place].removesuffix("\n") + "\n"
    return replace(joined, prompt=last_user_text(record.prompt))
