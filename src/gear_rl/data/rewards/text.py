"""The text of a completion and the values of a row's columns, as rewards read them. Knows no task."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gear_rl.environments import texts_of

log = logging.getLogger(__name__)

Completion = str | Sequence[Mapping[str, Any]]
"""As TRL gives it to a reward: plain text, or the messages after the prompt."""


def assistant_messages(completion: Completion) -> list[Mapping[str, Any]]:
    """The assistant messages; plain text is one of them.

    >>> assistant_messages([{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}])
    [{'role': 'assistant', 'content': 'a'}]
    """
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return [message for message in completion if message.get("role") == "assistant"]


def final_text(completion: Completion) -> str:
    """The last assistant message without its reasoning; empty if the reasoning is not closed.

    >>> final_text("<think>5?</think>4"), final_text("<think>5"), final_text("6")
    ('4', '', '6')
    """
    messages = assistant_messages(completion)
    text = "".join(texts_of(messages[-1].get("content"))) if messages else ""
    _, closed, answer = text.rpartition("</think>")
    if "<think>" in answer:
        return ""
    return answer if closed else text


def dotted(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, through objects and lists; None where the path ends early.

    A column whose own name holds the dots comes first.

    >>> dotted({"reward_model": {"ground_truth": "4"}}, "reward_model.ground_truth")
    '4'
    >>> dotted({"turns": [{"content": "hi"}]}, "turns.0.content"), dotted({"a": None}, "a.b")
    ('hi', None)
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        try:
            value = value[int(part) if isinstance(value, list) else part]
        except (LookupError, TypeError, ValueError):
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
