"""The reward for function-calling data: the calls of a completion against the expected ones.

Model text is read with ``json.loads`` and compared, never evaluated.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.data.rewards.text import Completion, assistant_messages, message_text, opens_reasoning
from gear_rl.files import without_null

log = logging.getLogger(__name__)

CALL_COLUMNS = ("calls", "tool_calls", "ground_truth")
"""Where a row may hold the expected calls, in the order in which they are tried."""

_ARGUMENTS = ("arguments", "parameters", "args", "input")
_OPENER = re.compile(
    r"(?:<tool_call>\s*)?<function=(?P<xml>[^\s<>]+)>|<tool_call>|(?P<code><\|python_tag\|>)|\[TOOL_CALLS\]"
    r"(?:\s*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\s*\{))?"
)
"""How a call begins: for Qwen3-Coder, Hermes and Qwen, Llama 3, Mistral."""
_VALUE = re.compile(r"\s*+[;,]?+\s*+(?!\[TOOL_CALLS\])(?=[\[{])")
_END = re.compile(r"\s*+(?:<|\[TOOL_CALLS\]|\Z)")
_PARAMETER = re.compile(r"\s*+<parameter=([^\s<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_FENCED = re.compile(r"\s*+```(?:json)?(.*)```\s*+", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda name: json.loads(""))


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: its name, and its arguments as JSON values."""

    name: str
    arguments: Mapping[str, Any]


class _Untyped(str):
    """An argument in XML, which spells the text "7" and the number 7 alike: it equals both."""


def tool_call_reward(completions: Sequence[Completion], **given: Any) -> list[float | None]:
    """How well the calls of a completion match the expected ones, 0 to 1: the mean of ``call_scores``.

    The column ``calls``, ``tool_calls`` or ``ground_truth`` holds the expected calls: a list of ``{name,
    arguments}`` or of OpenAI's form, or text of either. None for a row without readable ones. The completion's
    calls are the ``tool_calls`` of its messages, else those in their text behind the reasoning; an unreadable one
    counts as a call without a name.

    >>> said = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 3}}</tool_call>'
    >>> tool_call_reward([said], calls=[[{"name": "add", "arguments": {"a": 1.0, "b": 2}}]])
    [0.8333333333333334]
    """
    return _rewards("tool_call_reward", completions, **given)


def tool_call_exact(completions: Sequence[Completion], **given: Any) -> list[float | None]:
    """1.0 for exactly the expected calls in their order, else 0.0; the rest as ``tool_call_reward``."""
    rewards = _rewards("tool_call_exact", completions, **given)
    return [None if reward is None else float(reward == 1.0) for reward in rewards]


def _rewards(
    name: str,
    completions: Sequence[Completion],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    present = [column for column in CALL_COLUMNS if column in columns]
    if not present:
        raise ValueError(
            f"{name}: the dataset has none of the columns {', '.join(CALL_COLUMNS)}; name yours with "
            "--columns.calls COLUMN"
        )
    rewards: list[float | None] = []
    malformed, opened = 0, opens_reasoning(columns, len(completions))
    for i, completion in enumerate(completions):
        value = next((columns[column][i] for column in present if columns[column][i] is not None), None)
        expected, made = expected_calls(value), made_calls(completion, opened[i])
        malformed += made.count(None)
        rewards.append(None if expected is None else sum(call_scores(expected, made)) / 3)
    unreadable = rewards.count(None)
    if log_metric is not None:
        log_metric(f"{name}/malformed", float(malformed))
        log_metric(f"{name}/unreadable_expected", float(unreadable))
    if unreadable:
        log.warning(
            "%s: the expected calls of %d of %d rows cannot be read; write a list of {name, arguments}",
            *(name, unreadable, len(rewards)),
        )
    return rewards


def call_scores(expected: Sequence[Call], made: Sequence[Call | None]) -> tuple[float, float, float]:
    """How well names, arguments and order agree, each 0 to 1; where no call is expected, none must be made.

    *Names*: F1 of the two multisets. *Arguments*: calls of one name are paired, the best pairs first. A pair
    scores the share of keys on which both agree, a call without a partner 0. *Order*: the longest common
    subsequence of the names, over the longer list.

    >>> call_scores([Call("f", {"a": 1}), Call("g", {})], [Call("g", {})])
    (0.6666666666666666, 0.5, 0.5)
    """
    if not expected or not made:
        none = float(not expected and not made)
        return none, none, none
    calls = [call for call in made if call is not None]
    wanted, given = [call.name for call in expected], [call.name for call in calls]
    longer = max(len(expected), len(made))
    shared = (Counter(wanted) & Counter(given)).total()
    return (
        2 * shared / (len(expected) + len(made)),
        _pair_agreement(expected, calls) / longer,
        _common_subsequence(wanted, given) / longer,
    )


def made_calls(completion: Completion, opened: bool = False) -> list[Call | None]:
    """The calls of a completion's assistant messages, not those in its reasoning; None for an unreadable one.

    ``opened``: the prompt has opened the reasoning.

    >>> made_calls('<tool_call>{"name": "f"}</tool_call> <tool_call>__import__("os")</tool_call>')
    [Call(name='f', arguments={}), None]
    """
    calls: list[Call | None] = []
    for message in assistant_messages(completion):
        if message.get("tool_calls"):
            calls += map(_call, message["tool_calls"])
        else:
            calls += _text_calls(message_text(message, opened))
    return calls


def expected_calls(value: Any) -> Sequence[Call] | None:
    """The expected calls of a row, from a list or from text as a model writes it; None if they cannot be read.

    A key with null counts as absent in a list: Arrow adds the keys of other rows with null.

    >>> expected_calls('[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]')
    [Call(name='f', arguments={})]
    >>> expected_calls([{"func": 1}]), expected_calls("f(1)"), expected_calls(None)
    (None, None, None)
    """
    items: Any = _json(value) if isinstance(value, str) else without_null(value)
    if items is None and isinstance(value, str):
        calls = _text_calls(value)
        return _all_calls(calls) if calls else None
    if isinstance(items, Mapping):
        items = [items]
    if not isinstance(items, list):
        return None
    calls = [_call(_json(item) if isinstance(item, str) else item) for item in items]
    return _all_calls(calls)


def _all_calls(calls: Sequence[Call | None]) -> Sequence[Call] | None:
    known = [call for call in calls if call is not None]
    return known if len(known) == len(calls) else None


def equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; 1 equals 1.0, but not true.

    >>> equal(1, 1.0), equal(1, "1"), equal(1, True), equal({"a": [1]}, {"a": [1.0]}), equal([1, 2], [2, 1])
    (True, False, False, True, False)
    """
    for untyped, other in ((left, right), (right, left)):
        if isinstance(untyped, _Untyped):
            words = {"True": "true", "False": "false", "None": "null"}  # as Jinja writes them
            value = _json(words.get(untyped, untyped), otherwise=str(untyped))
            return str(untyped) == other or equal(value, other)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def _pair_agreement(expected: Sequence[Call], made: Sequence[Call]) -> float:
    """The sum over pairs of one name, the best pair first; ties go to the earlier calls."""
    pairs = sorted(
        (
            (_agreement(e.arguments, m.arguments), -i, -j)
            for i, e in enumerate(expected)
            for j, m in enumerate(made)
            if e.name == m.name
        ),
        reverse=True,
    )
    total, used_expected, used_made = 0.0, set[int](), set[int]()
    for worth, i, j in pairs:
        if i not in used_expected and j not in used_made:
            used_expected.add(i)
            used_made.add(j)
            total += worth
    return total


def _agreement(expected: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    keys = expected.keys() | made.keys()
    agreed = sum(key in expected and key in made and equal(expected[key], made[key]) for key in keys)
    return agreed / len(keys) if keys else 1.0


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    row = [0] * (len(right) + 1)
    for a in left:
        before, row = row, [0]
        for j, b in enumerate(right):
            row.append(before[j] + 1 if a == b else max(before[j + 1], row[j]))
    return row[-1]


def _text_calls(text: str) -> list[Call | None]:
    """The calls in a text, behind openers or of JSON alone; None for an unreadable one."""
    calls: list[Call | None] = []
    opener = _OPENER.search(text)
    if opener is None:
        fenced = _FENCED.fullmatch(text)
        text = fenced[1] if fenced else text
        items, end = _json_items(text, 0)
        if not _END.match(text, end):
            items = None
        if items is None:
            return [None] if _VALUE.match(text) and '"name"' in text else []
        return [*map(_call, items)] if any(_is_call(item) for item in items) else []
    while opener is not None:
        found, place = _opened_calls(text, opener)
        calls += found
        opener = _OPENER.search(text, place)
    return calls


def _opened_calls(text: str, opener: re.Match[str]) -> tuple[list[Call | None], int]:
    """The calls behind an opener and the place behind them; none if prose only mentions it."""
    begin = opener.end()
    if opener["xml"]:
        end = text.find("</function>", begin)
        arguments = None if end < 0 else _xml_arguments(text[begin:end])
        return [None if arguments is None else Call(opener["xml"], arguments)], max(begin, end)
    items, end = _json_items(text, begin)
    if items is not None and end > begin and _END.match(text, end):
        if opener["name"]:
            items = [{"name": opener["name"], "arguments": items[0] if len(items) == 1 else items}]
        return [*map(_call, items)], end
    following = _OPENER.search(text, begin)
    own = text[begin : following.start() if following else None]
    return [None] if opener["code"] or _VALUE.match(own) or "</tool_call>" in own else [], begin


def _json_items(text: str, begin: int) -> tuple[list[Any] | None, int]:
    """What the JSON objects and lists from ``begin`` on hold, and the place behind them; None for broken ones."""
    items, place = list[Any](), begin
    while start := _VALUE.match(text, place):
        try:
            value, place = _DECODER.raw_decode(text, start.end())
        except (ValueError, RecursionError):  # RecursionError: brackets nested too deep
            return None, begin
        items += value if isinstance(value, list) else [value]
    return items, place


def _xml_arguments(body: str) -> dict[str, Any] | None:
    arguments, place = dict[str, Any](), 0
    while given := _PARAMETER.match(body, place):
        arguments[given[1]], place = _Untyped(given[2]), given.end()
    return None if body[place:].strip() else arguments


def _is_call(item: Any) -> bool:
    return isinstance(item, Mapping) and (
        "function" in item or ("name" in item and not item.keys().isdisjoint(_ARGUMENTS))
    )


def _call(item: Any) -> Call | None:
    if not isinstance(item, Mapping):
        return None
    call = item["function"] if isinstance(item.get("function"), Mapping) else item
    name = call.get("name", call.get("function"))
    arguments: Any = next((call[key] for key in _ARGUMENTS if call.get(key) is not None), "")
    if isinstance(arguments, str):
        arguments = _json(arguments.strip() or "{}")
    if call.keys().isdisjoint(_ARGUMENTS) and any(isinstance(value, Mapping) for value in call.values()):
        return None  # arguments under another word
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return None
    return Call(name, arguments)


def _json(text: str, otherwise: Any = None) -> Any:
    """The JSON value of a text, else ``otherwise``; NaN is none. A string may hold a line break."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return otherwise
