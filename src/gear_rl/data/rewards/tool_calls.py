"""The reward for function-calling data: the calls of a completion against the expected ones.

Model text is read with ``json.loads`` and compared. It is never evaluated.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gear_rl.data.rewards.text import Completion, assistant_messages, content_text

log = logging.getLogger(__name__)

CALL_COLUMNS = ("calls", "tool_calls", "ground_truth")
"""Where a row may hold the expected calls, in the order in which they are tried."""

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: its name, and its arguments as JSON values.

    >>> expected_calls([{"name": "add", "arguments": {"a": 1}}])
    [Call(name='add', arguments={'a': 1})]
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """The calls of a completion, in order, and how many more could not be read.

    >>> made_calls("nothing to call")
    Made(calls=[], malformed=0)
    """

    calls: list[Call]
    malformed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallReward:
    """How well the calls of a completion match the expected ones, from 0 to 1: a weighted mean of three parts.

    *name*: F1 of the two multisets of names. *arguments*: expected and made calls of one name are paired, the
    best pairs first; a pair is worth the share of keys on which both agree, of all keys that either has; a call
    without a partner, on either side, is worth 0. *order*: the longest common subsequence of the two lists of
    names, over the longer one. A call that cannot be read counts as a call of no name. If no call is expected,
    none is right. ``exact`` gives 1.0 if every part that has a weight is perfect, else 0.0.

    Values compare as JSON: 1 equals 1.0, but neither ``"1"`` nor ``true``. Expected calls stand in the column
    ``calls``, ``tool_calls`` or ``ground_truth``: a list of ``{name, arguments}`` or OpenAI's
    ``{type, function: {name, arguments}}``, or JSON text of either. Arrow fills the keys that only another row
    has with null: a null in expected arguments that are no JSON text counts as absent. A row without expected
    calls, or with unreadable ones, gives None. Made calls are the ``tool_calls`` of all assistant messages, or
    the ``<tool_call>`` JSON blocks of messages that have none.

    >>> said = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 3}}</tool_call>'
    >>> tool_call_reward([said], calls=[[{"name": "add", "arguments": {"a": 1.0, "b": 2}}]])
    [0.8333333333333334]
    """

    name: float = 1.0
    """Weight of the names."""
    arguments: float = 1.0
    """Weight of the arguments."""
    order: float = 1.0
    """Weight of the order."""
    exact: bool = False
    """All or nothing."""

    @property
    def __name__(self) -> str:
        """What a trainer's log calls this reward."""
        return "tool_call_exact" if self.exact else "tool_call_reward"

    def __post_init__(self) -> None:
        weights = (self.name, self.arguments, self.order)
        if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
            raise ValueError(f"ToolCallReward: weights must be 0 or more, and not all 0, got {weights}")

    def __call__(
        self,
        completions: Sequence[Completion],
        *,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        present = [name for name in CALL_COLUMNS if name in columns]
        if not present:
            raise ValueError(
                f"{self.__name__}: the dataset has none of the columns {', '.join(CALL_COLUMNS)}; name yours "
                "with --columns.calls COLUMN"
            )
        rewards: list[float | None] = []
        malformed = unreadable = 0
        for i, completion in enumerate(completions):
            value = next((columns[name][i] for name in present if columns[name][i] is not None), None)
            expected = expected_calls(value)
            made = made_calls(completion)
            malformed += made.malformed
            unreadable += expected is None
            rewards.append(None if expected is None else self.score(expected, made))
        if log_metric is not None:
            log_metric(f"{self.__name__}/malformed", float(malformed))
            log_metric(f"{self.__name__}/unreadable_expected", float(unreadable))
        if unreadable:
            log.warning(
                "%s: the expected calls of %d of %d rows cannot be read; write a list of {name, arguments}",
                self.__name__,
                unreadable,
                len(completions),
            )
        return rewards

    def score(self, expected: Sequence[Call], made: Made) -> float:
        """The score of one completion.

        >>> ToolCallReward().score([], Made([])), ToolCallReward().score([], Made([Call("add", {})]))
        (1.0, 0.0)
        """
        parts = self.parts(expected, made)
        weights = {"name": self.name, "arguments": self.arguments, "order": self.order}
        if self.exact:
            return float(all(parts[part] == 1.0 for part, weight in weights.items() if weight))
        return sum(weight * parts[part] for part, weight in weights.items()) / sum(weights.values())

    def parts(self, expected: Sequence[Call], made: Made) -> dict[str, float]:
        """The three parts by themselves, before the weights."""
        num_made = len(made.calls) + made.malformed
        if not expected or not num_made:
            return dict.fromkeys(("name", "arguments", "order"), float(not expected and not num_made))
        wanted, given = [c.name for c in expected], [c.name for c in made.calls]
        longer = max(len(expected), num_made)
        shared = (Counter(wanted) & Counter(given)).total()
        return {
            "name": 2 * shared / (len(expected) + num_made),
            "arguments": _paired(expected, made.calls) / longer,
            "order": _common_subsequence(wanted, given) / longer,
        }


def made_calls(completion: Completion) -> Made:
    """The calls of a completion's assistant messages, those of an unclosed ``<tool_call>`` counted as malformed.

    >>> made_calls('<tool_call>{"name": "f"}</tool_call> <tool_call>__import__("os")</tool_call>')
    Made(calls=[Call(name='f', arguments={})], malformed=1)
    """
    calls: list[Call] = []
    malformed = 0
    for message in assistant_messages(completion):
        given: Any = message.get("tool_calls")
        if not given:
            given = [_json(block) for block in _BLOCK.findall(content_text(message.get("content")))]
        for item in cast(list[Any], given):
            call = _call(item)
            if call is None:
                malformed += 1
            else:
                calls.append(call)
    return Made(calls, malformed)


def expected_calls(value: Any) -> list[Call] | None:
    """The expected calls of a row, from a list or its JSON text; None if they cannot be read.

    >>> expected_calls('[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]')
    [Call(name='f', arguments={})]
    >>> expected_calls([{"func": 1}]), expected_calls("f(1)"), expected_calls(None)
    (None, None, None)
    """
    items: Any = _json(value) if isinstance(value, str) else _without_null(value)
    if isinstance(items, Mapping):
        items = [items]
    if not isinstance(items, list):
        return None
    calls = [_call(item) for item in cast(list[Any], items)]
    return None if None in calls else cast(list[Call], calls)


def equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are the same; numbers by value, everything else by type too.

    >>> equal(1, 1.0), equal(1, "1"), equal(1, True), equal({"a": [1]}, {"a": [1.0]}), equal([1, 2], [2, 1])
    (True, False, False, True, False)
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        a, b = cast(Mapping[str, Any], left), cast(Mapping[str, Any], right)
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(left, list) and isinstance(right, list):
        xs, ys = cast(list[Any], left), cast(list[Any], right)
        return len(xs) == len(ys) and all(equal(x, y) for x, y in zip(xs, ys, strict=True))
    return left == right  # text or null: different kinds differ


def _paired(expected: Sequence[Call], made: Sequence[Call]) -> float:
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
    """The length of the longest common subsequence."""
    row = [0] * (len(right) + 1)
    for a in left:
        before = row
        row = [0]
        for j, b in enumerate(right):
            row.append(before[j] + 1 if a == b else max(before[j + 1], row[j]))
    return row[-1]


def _call(item: Any) -> Call | None:
    if not isinstance(item, Mapping):
        return None
    call = cast(Mapping[str, Any], item)
    if isinstance(call.get("function"), Mapping):
        call = cast(Mapping[str, Any], call["function"])
    name, arguments = call.get("name"), call.get("arguments")
    if isinstance(arguments, str):
        arguments = _json(arguments)
        if arguments is None:
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return None
    return Call(name, cast(Mapping[str, Any], arguments))


def _json(text: str) -> Any:
    """The JSON value of a text; None if it is none. NaN and infinities are no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):  # also: a number of too many digits, brackets nested too deep
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {key: _without_null(inner) for key, inner in items if inner is not None}
    if isinstance(value, list):
        return [_without_null(inner) for inner in cast(list[Any], value)]
    return value


tool_call_reward = ToolCallReward()
"""The default: names, arguments and order weigh the same."""
tool_call_exact = ToolCallReward(exact=True)
"""1.0 for exactly the expected calls in their order, else 0.0."""
