"""What a group says of a completion: noise is no advantage, and which token is the first mistake."""

from typing import Any

import pytest

from gear_rl.view.group_notes import group_note, is_weight_on_mistake, judge_groups
from gear_rl.view.terminal import choose, instructiveness, runs
from support.records import record

RIGHT = record(4, ids=[1, 2, 3, 9], advantage=0.5, weight=[1.0] * 4)


def wrong(weight: list[float], **changes: Any) -> Any:
    """Its third token differs from the right completion's; the last follows from it."""
    values: dict[str, Any] = {"ids": [1, 2, 4, 8], "tokens": ["1", " 2", " 4", " 8"], "reward": 0.0}
    values |= {"advantage": -2.0, "weight": weight, "credit": [-2.0 * w for w in weight]}
    return record(4, **values | changes)


@pytest.mark.parametrize(
    ("others", "mistake"),
    [
        ([RIGHT, RIGHT], 2),
        ([RIGHT], None),
        ([RIGHT, RIGHT, record(4, ids=[1, 5, 3, 9])], None),
        ([wrong([1.0] * 4), wrong([1.0] * 4)], None),
        ([RIGHT, record(4, ids=[1, 2, 3, 9], group=1)], None),
        ([RIGHT, RIGHT, record(4, ids=[1, 5, 3, 9], reward=0.5)], 2),
    ],
    ids=["one solution", "one sample", "two ways", "none right", "another group", "half right"],
)
def test_a_mistake_is_known_where_several_right_completions_are_the_same(others, mistake):
    *_, judged = judge_groups([*others, wrong([0.5, 0.5, 2.0, 1.0])])
    assert judged.mistake == mistake
    assert is_weight_on_mistake(judged) is (None if mistake is None else True)
    *_, answered = judge_groups([*others, wrong([0.5, 0.5, 0.0, 1.0], mask=[1, 1, 0, 1])])
    assert answered.mistake is None, "a tool's answer is no mistake"


def test_the_first_completion_shown_is_one_whose_mistake_has_the_largest_weight():
    beside = wrong([0.2, 0.2, 0.6, 3.0], segment=[0, 0, 1, 1])
    on_it = wrong([0.6, 0.6, 1.6, 1.2])
    judged = list(judge_groups([RIGHT, RIGHT, beside, on_it]))
    assert [is_weight_on_mistake(one) for one in judged] == [None, None, False, True]
    assert choose(judged) is judged[3] and choose([beside, on_it]) is beside
    assert [group_note(one) for one in judged] == [
        "", "", "first mistake: 4, weight 0.6, largest 3", "first mistake: 4, weight 1.6, the largest"
    ]  # fmt: skip
    assert group_note(beside) == "the largest weight need not be on the mistake"
    even = list(judge_groups([RIGHT, RIGHT, wrong([1.0] * 4)]))[2]
    assert is_weight_on_mistake(even) is None and group_note(even) == "", "GRPO puts it nowhere"


def test_an_advantage_of_rounding_noise_is_none():
    """GRPO's shares of it are no credit; what a method adds to it is."""
    noise = {"advantage": 1.18e-07, "segment": [0, 0, 1, 1]}
    shared = record(4, **noise, credit=[1e-7, 1e-7, 1.4e-7, 1.4e-7], weight=[0.8, 0.8, 1.2, 1.2])
    added = record(4, **noise, credit=[1.6, 1.6, 0.0, 0.0], weight=[13702000.0, 13702000.0, 0.0, 0.0])
    for others in ([], [record(4, reward=0.0, advantage=-1.5)]):
        first, second, *_ = judge_groups([shared, added, *others])
        assert first.advantage == second.advantage == 0 and not instructiveness(second)[0]
        assert first.credit == [0.0] * 4 and not any(run.bracketed for run in runs(first))
        assert second.credit == added.credit and second.weight == [2.0, 2.0, 0.0, 0.0]
        notes = [
            f"all rewards of its group are equal: {c}" for c in ("no credit", "the credit is not from them")
        ]
        assert [group_note(one) for one in (first, second)] == (["", ""] if others else notes)
    small = record(4, advantage=0.01)
    assert next(judge_groups([small])).advantage == 0.01, "a batch's baseline, not the group's"
