"""The mathematics reward: what counts as equal, what is not applicable, and what is counted."""

from contextlib import nullcontext
from decimal import Decimal

import datasets
import pytest

from gear_rl.data.rewards.maths import check_golds, gold_answers, math_reward
from gear_rl.errors import InputError

pytest.importorskip("math_verify")


def test_a_cut_off_thought_under_a_prompt_that_opens_it_is_no_answer():
    told = {"prompts": ["2 + 2 = <think>\n", "2 + 2 = "], "answer": ["4", "4"]}
    assert math_reward([r"so \boxed{4}"] * 2, **told) == [0.0, 1.0]
    assert math_reward([r"so \boxed{5}</think> \boxed{4}"] * 2, **told) == [1.0, 1.0]


def test_messages_and_text_are_read_alike_and_the_last_message_counts():
    chat = [
        {"role": "assistant", "content": r"\boxed{1}"},
        {"role": "tool", "content": r"\boxed{2}"},
        {"role": "assistant", "content": [{"type": "text", "text": r"\boxed{3}"}]},
    ]
    assert math_reward([chat, chat, r"\boxed{3}", []], answer=[3, 1, 3.0, 3]) == [1.0, 0.0, 1.0, 0.0]


def test_the_gold_answer_is_sought_in_the_known_columns_in_order():
    columns = {
        "solution": ["1", None, None, None],
        "answer": ["9", "... #### 1,002", "", True],
        "reward_model": [None, None, {"ground_truth": "3"}, {"style": "rule"}],
    }
    assert gold_answers(columns, 4) == ["1", "... #### 1,002", "3", None]
    with pytest.raises(ValueError, match="none of the columns solution, answer, ground_truth"):
        math_reward(["1"], gold=["1"])


def test_a_plain_answer_goes_before_a_solution_in_prose():
    prose = "First we count. The first ones are 94, and with the six others there are 100."
    assert math_reward([r"\boxed{100}", r"\boxed{6}"], solution=[prose] * 2, answer=["6"] * 2) == [0.0, 1.0]
    assert gold_answers({"solution": [r"so \boxed{6}"], "answer": ["18 dollars"]}, 1) == [r"so \boxed{6}"]
    deep = "[" * 100_000
    assert gold_answers({"answer": [deep]}, 1) == [deep]
    assert gold_answers({"reward_model": ['{"ground_truth": ["34"]}']}, 1) == ["34"]
    for worked in ("3 + 4 = 7", "3 + 4\n7", "3; 7"):
        assert gold_answers({"solution": [worked], "answer": ["7"]}, 1) == ["7"]


def test_a_text_that_hangs_is_killed_and_counted(caplog, monkeypatch):
    """A gold answer that hangs is unreadable; no completion gets 0 for it."""
    monkeypatch.setattr("gear_rl.data.rewards.maths.LIMIT_SECONDS", 2.0)
    metrics, extra, endless = {}, {}, "$9^{9^{9^9}}$"
    found = math_reward(
        [endless, "4", "no number", "4"],
        answer=["3", "4", "5", endless],
        log_metric=metrics.__setitem__,
        log_extra=extra.__setitem__,
    )
    assert found == [0.0, 1.0, 0.0, None]
    assert metrics == {
        "math_reward/timeouts": 1.0,
        "math_reward/errors": 0.0,
        "math_reward/no_answer": 1.0,
        "math_reward/unreadable_gold": 1.0,
    }
    assert extra == {"math_answer": [None, "4", None, None]}
    [record] = caplog.records
    assert record.message == "math_reward: of 4 answers 1 timeouts, 1 unreadable gold"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"answer": ["1"]}, {"answer": ["1", "2"]}],
            r"'answer' of row 2 is \['1', '2'\]; name .* --columns.ground_truth",
        ),
        ([{"answer": '["1", "2"]'}, {"answer": "1"}], "'answer' of row 1 is"),
        ([{"answer": "7", "gold": "1"}, {"answer": "", "gold": "2"}], None),
        ([{"answer": ["1", "2"]}], r"'answer' of row 1 is \['1', '2'\]; name .* --columns.ground_truth"),
        ([{"answer": None}, {"answer": False}], "'answer' of row 2 is False; write it as text"),
        ([{"answer": Decimal("1.5")}], r"'answer' of row 1 is Decimal\('1.5'\); write it as text"),
        ([{"answer": ""}], "no gold answer in solution, answer"),
        ([{"answer": " ", "solution": []}], "no gold answer in solution, answer"),
        ([{"gold": "1"}], "no gold answer in solution, answer"),
    ],
)
def test_gold_answers_are_checked_before_the_first_step(rows, message):
    dataset = datasets.Dataset.from_list(rows)
    with nullcontext() if message is None else pytest.raises(InputError, match=message):
        check_golds(dataset)
