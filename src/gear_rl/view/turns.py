"""A record of several turns, laid out for a person: one line for each turn and for each tool answer."""

import re
from dataclasses import replace
from itertools import groupby

from gear_rl.records import Record

_MARKUP = re.compile(r"<\|[^|<>]*\|>(?:user|assistant|tool|system)?|</?tool_response>|</?think>")
"""What Qwen and its kin put around a tool's answer."""
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_BREAK = "\u23ce"


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

    A line break inside a tool call becomes ``⏎``, so that a call stays on one line; the prompt becomes what the
    user said last, without tools and markup, where it is written in Qwen's chat format. The numbers of trained
    tokens stay as they are. A record without turns is returned unchanged.

    >>> record = Record(
    ...     step=1, group=0, method="gear", prompt="<|im_start|>user\\nwho?<|im_end|>\\n", ids=[1, 2, 3, 4, 5],
    ...     tokens=["look", "<|im_end|>", "<tool_response>", "ann", "done"], mask=[1, 1, 0, 0, 1],
    ...     turn=[0, 0, -1, -1, 1], segment=[0, 1, -1, -1, 2], reward=1.0, advantage=1.0,
    ...     credit=[1.0, 1.0, 0.0, 0.0, 1.0], weight=[1.0, 1.0, 0.0, 0.0, 1.0],
    ... )
    >>> by_turn(record).tokens, by_turn(record).prompt
    (['look', '<|im_end|>\\n', 'ann\\n', 'done'], 'who?')
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
    return replace(
        record,
        prompt=last_user_text(record.prompt),
        tokens=tokens,
        ids=[record.ids[t] for t in kept],
        mask=[record.mask[t] for t in kept],
        turn=[record.turn[t] for t in kept],
        segment=[record.segment[t] for t in kept],
        credit=[record.credit[t] for t in kept],
        weight=[record.weight[t] for t in kept],
        signals={name: [values[t] for t in kept] for name, values in record.signals.items()},
    )


def _in_line(tokens: list[str], t: int) -> str:
    """The token, with a line break that is only the frame of a tool call made visible instead of obeyed."""
    before, after = "".join(tokens[max(t - 1, 0) : t + 1]), "".join(tokens[t : t + 2])
    in_call = "<tool_call>" in before or "</tool_call>" in after
    return tokens[t].replace("\n", _BREAK) if in_call else tokens[t]
