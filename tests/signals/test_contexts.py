"""Where a privileged context comes from, what a contrast subtracts, what the first tokens of a turn keep."""

import pytest
import torch

from gear_rl.credit.contexts import Rollout, find_contexts, wrong_contexts
from gear_rl.signals.passes import contrast_signals
from gear_rl.types import TokenSignals


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
    assert wrong_contexts([{}] * 4, ["x", "x", "y", None], [], "shuffled") == ["y", "y", "x", "x"]
    assert wrong_contexts([{}] * 2, ["x", "x"], [], "shuffled") == [None, None]
    assert wrong_contexts([{"bad": "5"}, {"bad": ""}], ["x"] * 2, [], "bad") == ["5", None]


def test_a_contrast_by_hand():
    nan, mask = float("nan"), torch.tensor([[True, True, False, True]])
    right = {
        "student_logprob": [-1.0, -2.0, 0.0, -0.5],
        "teacher_logprob": [-0.5, -4.0, 0.0, -0.5],
        "teacher_entropy": [2.0, 0.5, 0.0, 0.25],
        "divergence": [1.0, 3.0, 0.0, nan],
    }
    wrong = {
        "teacher_logprob": [-0.7, -1.0, 0.0, -0.5],
        "teacher_entropy": [1.0, 1.0, 0.0, 1.0],
        "divergence": [1.5, 0.5, 0.0, 0.1],
    }
    right, wrong = (
        TokenSignals(mask=mask, values={name: torch.tensor([x]) for name, x in values.items()})
        for values in (right, wrong)
    )
    found = contrast_signals(right, wrong)
    assert [*found.values] == [*right.values]
    torch.testing.assert_close(found.divergence, torch.tensor([[0.0, 2.5, 0.0, nan]]), equal_nan=True)
    # The log-ratio that a method reads is log T+ - log T-: 0.2, -3 and 0.
    ratio = found.teacher_logprob - found.get("student_logprob")
    torch.testing.assert_close(ratio, torch.tensor([[0.2, -3.0, 0.0, 0.0]]))
    assert found.teacher_entropy is right.teacher_entropy
    with pytest.raises(ValueError, match="'divergence' was not computed"):
        contrast_signals(right, TokenSignals(mask=mask))
