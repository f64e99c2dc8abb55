"""The teacher's prompt: where the context goes, and where it never goes."""

import pytest

from gear_rl.credit.config import DEFAULT_TEMPLATE
from gear_rl.credit.contexts import fill, privileged_context, render

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "first {privileged_context}"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "second"},
]


def test_the_first_user_message_takes_the_context_and_nothing_else_changes():
    shown = render(CHAT, "the {prompt} answer", "{prompt} | {privileged_context} | \\boxed{}")
    assert shown[1] == {
        "role": "user",
        "content": "first {privileged_context} | the {prompt} answer | \\boxed{}",
    }
    assert [shown[0], *shown[2:]] == [CHAT[0], *CHAT[2:]]
    assert CHAT[1]["content"] == "first {privileged_context}"


def test_without_a_user_message_the_system_message_takes_it():
    shown = render([{"role": "system", "content": "s"}], "c", "{prompt}+{privileged_context}")
    assert shown[0]["content"] == "s+c"


def test_content_blocks_keep_their_images():
    blocks = [{"type": "image"}, {"type": "text", "text": "q"}]
    shown = render([{"role": "user", "content": blocks}], "c", "{prompt}+{privileged_context}")
    assert shown[0]["content"] == [{"type": "image"}, {"type": "text", "text": "q+c"}]
    assert blocks[1]["text"] == "q"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "tool", "content": "x"}, "no user or system message"),
        ({"role": "user", "content": [{"type": "image"}]}, "no text to hold"),
    ],
)
def test_a_prompt_that_cannot_hold_the_context_is_refused(message, error):
    with pytest.raises(ValueError, match=error):
        render([message], "c", DEFAULT_TEMPLATE)


def test_filling_never_searches_what_it_filled_in():
    given = {"prompt": "a {privileged_context} b {prompt}", "privileged_context": "{prompt}"}
    assert fill("{prompt}|{privileged_context}", **given) == "a {privileged_context} b {prompt}|{prompt}"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"privileged_context": "p", "solution": "s"}, ("privileged_context", "p")),
        ({"privileged_context": "", "solution": "s", "answer": "a"}, ("solution", "s")),
        ({"privileged_context": None, "answer": 0}, ("answer", "0")),
        ({"ground_truth": ["a", "b"]}, ("ground_truth", '["a", "b"]')),
        (
            {"solution": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            ("solution", "x\ny"),
        ),
        ({"reward_model": {"ground_truth": "v"}}, ("reward_model.ground_truth", "v")),
        ({"answer": " \n"}, None),
        ({}, None),
    ],
)
def test_columns_are_tried_in_their_order(row, expected):
    assert privileged_context(row) == expected


def test_a_named_column_is_the_only_one():
    assert privileged_context({"answer": "a", "gold": "g"}, column="gold") == ("gold", "g")
    assert privileged_context({"answer": "a"}, column="gold") is None
