"""Which answers count as the gold answer, and which as none."""

import pytest

from data.answer_table import NESTED, ROWS
from gear_rl.data.rewards.maths import math_reward

pytest.importorskip("math_verify")


@pytest.mark.parametrize(("text", "gold", "reward"), ROWS)
def test_answers_and_their_rewards(text, gold, reward):
    assert math_reward([text], answer=[gold]) == [reward]


@pytest.mark.parametrize(
    "gold", dict.fromkeys(str(gold) for _, gold, reward in ROWS[: -len(NESTED)] if reward is not None)
)
def test_a_gold_answer_is_its_own_answer(gold):
    assert math_reward([gold], answer=[gold]) == [1.0]
