"""Where a privileged context comes from, what a contrast subtracts, what the first tokens of a turn keep."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.credit.config import SOURCES, check_sources
from gear_rl.credit.contexts import Rollout, find_contexts, wrong_contexts
from gear_rl.signals.passes import contrasted, skipping_first
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


def test_a_function_sees_row_and_rollout():
    def function(row, made):
        return f"{row['n']} {made.text}" if made.reward == 0.0 else None

    made = [rollout("a", 0.0), rollout("b", 1.0)]
    found = find_contexts([{"n": 1}, {"n": 2}], made, ["function"], function=function)
    assert found == [("function", "1 a"), None]
    with pytest.raises(ValueError, match="returned int"):
        find_contexts([{}], made, ["function"], function=lambda row, r: 3)  # type: ignore[return-value]


def test_unknown_and_missing_sources_are_refused():
    for sources, message in (([], "empty"), (["row", "rows"], "'rows'"), (["function"], "needs a function")):
        with pytest.raises(ValueError, match=message):
            check_sources(sources)
    check_sources(list(SOURCES), has_function=True)


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
        "student_entropy": [0.3, 0.2, 0.0, 0.1],
        "teacher_entropy": [2.0, 0.5, 0.0, 0.25],
        "divergence": [1.0, 3.0, 0.0, nan],
        "js_divergence": [0.5, 0.25, 0.0, 0.125],
    }
    wrong = {
        "teacher_logprob": [-0.7, -1.0, 0.0, -0.5],
        "teacher_entropy": [1.0, 1.0, 0.0, 1.0],
        "divergence": [1.5, 0.5, 0.0, 0.1],
        "js_divergence": [0.125, 0.5, 0.0, 0.125],
    }
    right, wrong = (
        TokenSignals(mask=mask, values={name: torch.tensor([x]) for name, x in values.items()})
        for values in (right, wrong)
    )
    found = contrasted(right, wrong)
    assert [*found.values] == [*right.values]
    torch.testing.assert_close(found.divergence, torch.tensor([[0.0, 2.5, 0.0, nan]]), equal_nan=True)
    torch.testing.assert_close(found.js_divergence, torch.tensor([[0.375, 0.0, 0.0, 0.0]]))
    # The log-ratio that a method reads is log T+ - log T-: 0.2, -3 and 0.
    ratio = found.teacher_logprob - found.get("student_logprob")
    torch.testing.assert_close(ratio, torch.tensor([[0.2, -3.0, 0.0, 0.0]]))
    for name in ("student_entropy", "teacher_entropy"):
        assert found.get(name) is right.get(name)
    with pytest.raises(ValueError, match="'divergence' was not computed"):
        contrasted(right, TokenSignals(mask=mask))


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(0, 4))
def test_skipping_first_is_the_loop_that_defines_it(rows, skip):
    mask = torch.tensor(rows)
    generator = torch.Generator().manual_seed(0)
    own, teacher, divergence = (
        torch.where(mask, torch.rand(mask.shape, generator=generator) - 1.0, 0.0) for _ in range(3)
    )
    signals = TokenSignals(
        mask=mask,
        student_logprob=own,
        teacher_logprob=teacher,
        teacher_entropy=own,
        divergence=divergence + 1.0,
        forward_divergence=divergence + 2.0,
    )
    found = skipping_first(signals, skip)
    for b, row in enumerate(rows):
        since = 0
        for t, trained in enumerate(row):
            since = since + 1 if trained else 0
            skipped = trained and since <= skip
            for name in ("divergence", "forward_divergence"):
                assert found.get(name)[b, t] == (0.0 if skipped else signals.get(name)[b, t])
            assert found.get("teacher_logprob")[b, t] == (own if skipped else teacher)[b, t]
    assert found.student_logprob is own and found.teacher_entropy is own
