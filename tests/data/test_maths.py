"""The mathematics reward: what counts as equal, what is not applicable, and what is counted."""

import pytest

from gear_rl.data.rewards.maths import gold_answers, math_reward

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{70\%}", "0.7", 1.0),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        ("72", "48 / 2 = <<48/2=24>>24 clips.\n48 + 24 = 72.\n#### 72", 1.0),
        ("24", "48 / 2 = <<48/2=24>>24 clips.\n48 + 24 = 72.\n#### 72", 0.0),
        # Hedging earns nothing: two boxes are a set, of a bare list the first number counts.
        (r"\boxed{3} or \boxed{4}", "4", 0.0),
        # Nothing of the model's text is evaluated.
        ("__import__('os')._exit(1)", "3", 0.0),
        ("<think>it is 7</think> 8", "7", 0.0),
        ("<think>it is 7", "7", 0.0),
        ("7", "no idea at all", None),
        ("7", "", None),
    ],
)
def test_answers_and_their_rewards(text, gold, reward):
    assert math_reward([text], solution=[gold]) == [reward]


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
    assert gold_answers(columns, 4) == ["1", "1002", "3", None]
    with pytest.raises(ValueError, match="none of the columns solution, answer, ground_truth"):
        math_reward(["1"], gold=["1"])


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
