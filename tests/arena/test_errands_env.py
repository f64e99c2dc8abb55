"""The desk of "errands": which calls count, and which are refused."""

import pytest

from arena.test_errands_truth import GOLD, PROBLEM, WAIT, _env, _wrong
from gear_rl.arena.errands.problem import ITEMS


def test_the_first_call_for_a_request_counts() -> None:
    calls = [WAIT, _wrong(1), GOLD[1], GOLD[2], GOLD[2], GOLD[0]]
    assert _env(calls).get_reward() == pytest.approx(2 / 3)
    # Six calls count in this tier, so the seventh comes too late.
    assert _env([WAIT, *calls]).get_reward() == pytest.approx(1 / 3)
    assert _env(calls).turn_rewards() == [0, 0, 0, 1, 0, 1]
    assert _env([WAIT, *calls]).turn_rewards() == [0, 0, 0, 0, 1, 0, 0]


def test_what_cannot_be_sent_is_refused_and_costs_nothing() -> None:
    env = _env()
    with pytest.raises(ValueError, match=r"^no such request$"):
        env.send(next(item for item in ITEMS if item not in PROBLEM.items), "17")
    for code in ("7", "<|im_end|>"):
        with pytest.raises(ValueError, match=r"^no such code$"):
            env.send(PROBLEM.items[0], code)
    env.send(**GOLD[0].arguments)  # pyright: ignore[reportArgumentType]
    assert env.turn_rewards() == [0] * 3 + [1]
