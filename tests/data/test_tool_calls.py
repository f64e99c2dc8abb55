"""The tool-call reward against numbers worked by hand."""

import json

import pytest

from gear_rl.data.rewards.tool_calls import (
    Call,
    call_scores,
    equal,
    expected_calls,
    made_calls,
    tool_call_exact,
    tool_call_reward,
)


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def said(*calls):
    """A completion of chat messages, one call a message, as TRL parses it."""
    messages = []
    for each in calls:
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": each}]}
        )
        messages.append({"role": "tool", "name": each["name"], "content": "ok"})
    return [*messages, {"role": "assistant", "content": "done"}]


TWO = [call("find", city="Rome", days=2), call("book", id=7)]


@pytest.mark.parametrize(
    ("made", "name", "arguments", "order"),
    [
        (TWO, 1, 1, 1),
        (TWO[::-1], 1, 1, 1 / 2),
        (TWO[:1], 2 / 3, 1 / 2, 1 / 2),
        # find agrees on one of two keys.
        ([call("find", city="Rome", days=3), TWO[1]], 1, (1 / 2 + 1) / 2, 1),
        # A surplus key is one of three.
        ([call("find", city="Rome", days=2, x=0), TWO[1]], 1, (2 / 3 + 1) / 2, 1),
        ([call("look", city="Rome", days=2), TWO[1]], 2 * 1 / 4, 1 / 2, 1 / 2),
        # Calling everything twice does not pay.
        ([*TWO, *TWO], 2 * 2 / 6, 2 / 4, 2 / 4),
        ([], 0, 0, 0),
    ],
)
def test_the_three_parts(made, name, arguments, order):
    for completion in (said(*made), "".join(f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in made)):
        found = call_scores(expected_calls(TWO), made_calls(completion))
        assert found == pytest.approx((name, arguments, order))
        assert tool_call_reward([completion], calls=[TWO]) == [pytest.approx((name + arguments + order) / 3)]
        assert tool_call_exact([completion], calls=[TWO]) == [float((name, arguments, order) == (1, 1, 1))]


def test_calls_of_one_name_are_paired_by_their_best_agreement():
    expected = [call("f", a=1, b=1), call("f", a=2, b=2)]
    made = [call("f", a=2, b=2), call("f", a=1, b=9)]
    # The second expected call takes the first made one whole, the first takes the other by half.
    assert call_scores(expected_calls(expected), made_calls(said(*made)))[1] == 0.75


@pytest.mark.parametrize(
    "block",
    [
        '{"arguments": {"id": 7}}',
        '{"name": "book", "arguments": {"id": NaN}}',
        "[" * 100_000,
        '{"name": "book", "arguments": {"id": ' + "9" * 5000 + "}}",
    ],
)
def test_an_unreadable_call_is_counted_and_counts_as_a_call_of_no_name(block):
    metrics = {}
    text = f"<tool_call>{json.dumps(TWO[1])}</tool_call><tool_call>{block}"
    found = tool_call_reward([text], calls=[[TWO[1]]], log_metric=metrics.__setitem__)
    assert found == [pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)]
    assert metrics == {"tool_call_reward/malformed": 1.0, "tool_call_reward/unreadable_expected": 0.0}


@pytest.mark.parametrize(
    "value",
    [
        TWO,
        json.dumps(TWO),
        [{"type": "function", "function": {**c, "arguments": json.dumps(c["arguments"])}} for c in TWO],
        # Arrow's table of both rows: the keys of the other call are there, as null.
        [call("find", city="Rome", days=2, id=None), call("book", city=None, days=None, id=7)],
    ],
)
def test_expected_calls_in_every_spelling(value):
    assert expected_calls(value) == [Call(c["name"], c["arguments"]) for c in TWO]
    assert tool_call_reward([said(*TWO)], tool_calls=[value]) == [1.0]


def test_null_in_json_text_is_a_value():
    text = '[{"name": "f", "arguments": {"a": null}}]'
    assert tool_call_exact([said(call("f", a=None)), said(call("f"))], calls=[text, text]) == [1.0, 0.0]


def test_rows_without_readable_expectations_are_not_applicable_and_counted(caplog):
    metrics = {}
    values = [None, "find(city='Rome')", [{"find": {"city": ["Rome"]}}], TWO]
    found = tool_call_reward([said(*TWO)] * 4, ground_truth=values, log_metric=metrics.__setitem__)
    assert found == [None, None, None, 1.0]
    assert metrics["tool_call_reward/unreadable_expected"] == 3.0
    assert "the expected calls of 3 of 4 rows cannot be read" in caplog.text
    with pytest.raises(ValueError, match="none of the columns calls, tool_calls, ground_truth"):
        tool_call_reward(["x"], answer=["y"])


@pytest.mark.parametrize(("left", "right"), [(1, True), (0.0, False), (None, False), ("1", 1), ([], {})])
def test_values_of_different_kinds_differ(left, right):
    assert not equal(left, right) and not equal([left], [right])
    assert tool_call_exact([said(call("f", a=left))], calls=[json.dumps([call("f", a=right)])]) == [0.0]
