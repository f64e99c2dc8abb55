"""A record of several turns, laid out for a person: one line for each turn and for each tool answer."""

import re
from dataclasses import replace
from itertools import groupby

from gear_rl.records import Record

_MARKUP = re.compile(r"<\|[^|<>]*\|>(?:user|assistant|tool|system)?|</?tool_response>|</?think>")
"""What Qwen and its kin put around a tool's answer."""
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


def has_turns(record: Record) -> bool:
    """Whether tools answered in between: only then are there turns to lay out."""
    return 0 in record.mask and any(turn > 0 for turn in record.turn)


def last_user_text(prompt: str) -> str:
    """What the user said last, where the prompt is in Qwen's chat format; else the prompt as it is.

    >>> last_user_text("<|im_start|>user\\nwho?<|im_end|>\\n<|im_start|>assistant\\n"), last_user_text("who?")
    ('who?', 'who?')
    """
    said = _USER.findall(prompt)
    return said[-1] if said else prompt


def by_turn(record: Record) -> Record:
    """The same rollout with each tool answer as one token, without chat markup, and each turn on its own line.

    A line break inside a tool call becomes ``⏎``; the prompt becomes ``last_user_text``. The numbers of trained
    tokens stay as they are. A record without turns is returned unchanged.
    """
    if not has_turns(record):
        return record
    tokens: list[str] = []
    kept: list[int] = []
    for trained, group in groupby(range(len(record.tokens)), key=lambda t: bool(record.mask[t])):
        run = list(group)
        if trained:
            tokens += [_in_line(record.tokens, t) for t in run]
            kept += run
        else:
            tokens.append(_MARKUP.sub("", "".join(record.tokens[t] for t in run)).strip())
            kept.append(run[0])
        if run[-1] + 1 < len(record.tokens):
            tokens[-1] = tokens[-1].removesuffix("\n") + "\n"
    lists = {name: getattr(record, name) for name in ("ids", "mask", "turn", "segment", "credit", "weight")}
    return replace(
        record,
        prompt=last_user_text(record.prompt),
        tokens=tokens,
        signals={name: [values[t] for t in kept] for name, values in record.signals.items()},
        **{name: [values[t] for t in kept] for name, values in lists.items()},
    )


def _in_line(tokens: list[str], t: int) -> str:
    """The token, with a line break that is only the frame of a tool call made visible instead of obeyed."""
    before, after = "".join(tokens[max(t - 1, 0) : t + 1]), "".join(tokens[t : t + 2])
    in_call = "<tool_call>" in before or "</tool_call>" in after
    return tokens[t].replace("\n", "⏎") if in_call else tokens[t]
