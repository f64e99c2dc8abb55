"""The text of a completion and the values of a row's columns, as rewards read them. Knows no task."""

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gear_rl.environments import texts_of

log = logging.getLogger(__name__)

Completion = str | Sequence[Mapping[str, Any]]
"""As TRL gives it to a reward: plain text, or the messages after the prompt."""

_REASONING = re.compile(r"[<\[](/?)(?:think(?:ing)?|reasoning)[>\]]", re.IGNORECASE)
_OPEN_END = re.compile(r"[<\[](?:think(?:ing)?|reasoning)[>\]]\s*\Z", re.IGNORECASE)


def assistant_messages(completion: Completion) -> list[Mapping[str, Any]]:
    """The assistant messages; plain text is one of them.

    >>> assistant_messages([{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}])
    [{'role': 'assistant', 'content': 'a'}]
    """
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return [message for message in completion if message.get("role") == "assistant"]


def final_texts(completions: Sequence[Completion], columns: Mapping[str, Any]) -> list[str]:
    """The last assistant message of each completion without its reasoning; ``columns`` are the reward's others.

    >>> final_texts(["<think>5?</think>4", "<think>5", "6"], {})
    ['4', '', '6']
    """
    last = [(assistant_messages(completion) or [{}])[-1] for completion in completions]
    return [*map(message_text, last, opens_reasoning(columns, len(last)))]


def message_text(message: Mapping[str, Any], opened: bool = False) -> str:
    """The text of a message after its reasoning, which an engine's parser may have put apart already."""
    text = "".join(texts_of(message.get("content")))
    apart = "reasoning_content" in message or "thinking" in message
    return text if apart else strip_reasoning(text, opened)


def strip_reasoning(text: str, opened: bool = False) -> str:
    """The text after its reasoning; empty if the reasoning is not closed.

    ``opened`` means that the prompt ends in ``<think>``: its model writes only the end of the tag.

    >>> strip_reasoning("<think>5?</think>4"), strip_reasoning("5?</think>4"), strip_reasoning("5?", opened=True)
    ('4', '4', '')
    """
    tags = [*_REASONING.finditer(text)]
    if not tags:
        return "" if opened else text
    return text[tags[-1].end() :] if tags[-1][1] else ""


def opens_reasoning(columns: Mapping[str, Any], num: int) -> list[bool]:
    """Whether the prompt of each completion ends in a tag that opens reasoning.

    The trainer's column ``prompt_end`` has the end of the prompt behind its chat template; a reward sees messages
    before it. Without that column a prompt's own text counts.

    >>> opens_reasoning({"prompts": ["2 + 2 = <think>\\n", "<think></think>"]}, 2)
    [True, False]
    """
    ends = columns.get("prompt_end", columns.get("prompts", [None] * num))
    return [isinstance(end, str) and _OPEN_END.search(end) is not None for end in ends]


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, through objects, lists and their JSON text; None where the path ends early.

    A column whose own name holds the dots comes first. ``:-1`` is a part of a list.

    >>> value_at({"reward_model": '{"ground_truth": "4"}'}, "reward_model.ground_truth")
    '4'
    >>> turns = {"turns": ["a", "b", "c"]}
    >>> value_at(turns, "turns.:-1"), value_at(turns, "turns.-1"), value_at(turns, "turns.a")
    (['a', 'b'], 'c', None)
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        try:
            inner: Any = json.loads(value) if isinstance(value, str) else value
            if isinstance(inner, list):
                begin, colon, end = part.partition(":")
                ends = [int(n) if n else None for n in (begin, end)]
                value = inner[slice(*ends) if colon else int(part)]
            else:
                value = inner[part]
        except (LookupError, TypeError, ValueError, RecursionError):
            return None
    return value


def report_failures(
    reward: str,
    counts: Mapping[str, int],
    answers: int,
    log_metric: Callable[[str, float], None] | None,
    quiet: Collection[str] = (),
) -> None:
    """Log how many answers failed in which way: a metric for each, and one warning without the ``quiet`` ones."""
    if log_metric is not None:
        for name, count in counts.items():
            log_metric(f"{reward}/{name}", float(count))
    bad = [f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n and name not in quiet]
    if bad:
        log.warning("%s: of %d answers %s", reward, answers, ", ".join(bad))
