"""Where a privileged context comes from, and what a wrong one is."""

import pytest

from gear_rl.credit.contexts import (
    Rollout,
    find_contexts,
    privileged_context,
    shuffled_contexts,
    wrong_contexts,
)


def rollout(text, reward, group=0, **more):
    return Rollout(completion=text, text=text, reward=reward, group=group, **more)


def test_the_first_source_with_a_context_wins():
    both = rollout("x", 0.0, privileged_context="env", feedback="no")
    row = {"answer": "4"}
    for sources, wanted in (
        (["environment", "row"], ("environment", "env")),
        (["row", "environment"], ("answer", "4")),
        (["sibling", "feedback"], ("feedback", "no")),
        (["sibling"], None),
        (["sibling", "prompt"], ("prompt", "")),
    ):
        assert find_contexts([row], [both], sources) == [wanted]
    blank = rollout("x", 0.0, privileged_context=" \n")
    assert find_contexts([row], [blank], ["environment", "row"]) == [("answer", "4")]
    assert find_contexts([row], [both], ["row"], column="solution") == [None]


def test_a_sibling_is_another_success_of_the_same_group():
    group = [rollout("a", 1.0), rollout("b", 0.0), rollout("c", None), rollout("d", 1.0), rollout("e", 0.5)]
    other = [rollout("z", 1.0, group=1), rollout("y", 0.0, group=1), rollout(" ", 1.0, group=2)]
    everyone = [*group, *other]
    found = find_contexts([{}] * 8, everyone, ["sibling"])
    # The next one, going round: "a" sees "d", "d" sees "a"; "z" has no other success, " " no sibling.
    assert [None if pair is None else pair[1] for pair in found] == ["d", "d", "d", "a", "a", None, "z", None]
    assert find_contexts([{}], everyone, ["sibling"], first=1) == [("sibling", "d")]
    lenient = find_contexts([{}] * 5, group, ["sibling"], success_reward=0.5)
    assert [pair and pair[1] for pair in lenient] == ["d", "d", "d", "e", "a"]


def test_feedback_is_for_those_who_failed():
    failed = [rollout("a", reward, feedback="no") for reward in (1.0, 0.0, None)]
    assert find_contexts([{}] * 3, failed, ["feedback"]) == [None, ("feedback", "no"), None]


def test_wrong_contexts():
    group = [rollout("a", 1.0), rollout("b", 0.0), rollout("c", 0.0)]
    assert wrong_contexts([{}] * 3, ["x"] * 3, group, "sibling") == ["b", "c", "b"]
    alone = [rollout("a", 1.0), rollout("b", 0.0)]
    assert wrong_contexts([{}] * 2, ["x"] * 2, alone, "sibling") == ["b", None]
    assert wrong_contexts([{"bad": "5"}, {"bad": ""}], ["x"] * 2, [], "bad") == ["5", None]


def test_a_shuffled_context_is_another_groups():
    texts, group = ["x", "x", "y", None], [0, 1, 2, 3]
    assert shuffled_contexts([*zip(texts, group, strict=True)]) == ["y", "y", "x", "x"]
    assert shuffled_contexts([("x", 0), ("x", 1), ("y", 1)]) == ["y", None, "x"]


SAID = {"role": "assistant", "content": "cold", "tool_calls": None}
CALL = {"name": "find", "arguments": {"city": "Rom", "days": None}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]}


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
