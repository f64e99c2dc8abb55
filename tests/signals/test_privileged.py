"""The teacher's prompt: where the context goes, and where it never goes."""

import copy

import pytest

from gear_rl.credit.contexts import privileged_context, render

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "first {privileged_context}"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "second"},
]


SAID = {"role": "assistant", "content": "cold", "tool_calls": None}
CALL = {"name": "find", "arguments": {"city": "Rom", "days": None}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]}
BLOCKS = [{"type": "image"}, {"type": "text", "text": "q"}]


@pytest.mark.parametrize(
    ("chat", "place", "content"),
    [
        # the first user message; what is filled in is never searched
        (CHAT, 1, "first {privileged_context} | the {prompt} answer | \\boxed{}"),
        (CHAT[:1], 0, "be brief | the {prompt} answer | \\boxed{}"),
        (
            [{"role": "user", "content": BLOCKS}],
            0,
            [{"type": "image"}, {"type": "text", "text": "q | the {prompt} answer | \\boxed{}"}],
        ),
    ],
)
def test_one_message_takes_the_context_and_nothing_else_changes(chat, place, content):
    given = copy.deepcopy(chat)
    shown = render(chat, "the {prompt} answer", "{prompt} | {privileged_context} | \\boxed{}")
    assert shown[place] == {**chat[place], "content": content} and chat == given
    assert [*shown[:place], *shown[place + 1 :]] == [*chat[:place], *chat[place + 1 :]]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"privileged_context": "", "solution": "s", "answer": "a"}, ("solution", "s")),
        ({"privileged_context": None, "answer": 0}, ("answer", "0")),
        (
            {"solution": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            ("solution", "x\ny"),
        ),
        # null hides nothing, blocks are their text, calls are shown
        ({"solution": [{"role": "assistant", "content": None}], "answer": 4}, ("answer", "4")),
        ({"solution": [{"role": "assistant", "content": [{"type": "image"}]}], "answer": 4}, ("answer", "4")),
        (
            {"solution": [CALLING, {"role": "tool", "content": [{"type": "text", "text": "12 C"}]}, SAID]},
            ("solution", '{"name": "find", "arguments": {"city": "Rom"}}\n12 C\ncold'),
        ),
        (
            {
                "solution": [
                    {"role": "assistant", "tool_calls": ["find(x)", {"name": "f", "arguments": "{}"}]}
                ]
            },
            ("solution", 'find(x)\n{"name": "f", "arguments": "{}"}'),
        ),
        ({"solution": [{"content": 5}, {"content": ""}, {"content": {"x": 1}}]}, ("solution", '5\n{"x": 1}')),
        ({"reward_model": {"ground_truth": "v"}}, ("reward_model.ground_truth", "v")),
        ({}, None),
    ],
)
def test_columns_are_tried_in_their_order(row, expected):
    assert privileged_context(row) == expected
