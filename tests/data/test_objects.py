"""The user's own functions: what they return, and what they raise."""

import asyncio
import inspect
from functools import partial
from pathlib import Path

import pytest

from gear_rl.data.objects import context_fault, guard_function, reward_fault, rollouts_fault
from gear_rl.errors import InputError


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "1 values for 2 completions; return one for each"),
        (["x", "y"], r"\"\['x', 'y'\]\"; return a list with a number"),
        ({0.0, 1.0}, r"'\{0.0, 1.0\}'; return a list with a number"),  # a set has no order
        ([True, None], None),
    ],
)
def test_a_reward_of_the_wrong_kind_is_named(result, message):
    def reward(completions, **row):
        return result

    checked = guard_function(reward, "reward", "mine:reward", reward_fault)
    if message is None:
        assert checked(prompts=[], completions=["a", "b"]) is result and checked.__name__ == "reward"
    else:
        with pytest.raises(InputError, match=f"reward: mine:reward gave {message}"):
            checked(prompts=[], completions=["a", "b"])


def test_an_exception_of_a_function_names_its_line():
    def hint(row, rollout):
        return row["hint"]

    checked = guard_function(hint, "privileged", "mine:hint", context_fault)
    where = rf"{Path(__file__).name}, line {hint.__code__.co_firstlineno + 1}"
    with pytest.raises(InputError, match=rf"mine:hint raised KeyError: 'hint' \({where}\)"):
        checked({}, None)
    with pytest.raises(InputError, match="privileged: mine:hint gave int; return text"):
        checked({"hint": 7}, None)
    assert (rollouts_fault({"completion_ids": [[1], []]}, {}) or "").startswith("no token for completion 1")
    assert (rollouts_fault(None, {}) or "").startswith("NoneType; return a dict")


def test_a_reward_that_takes_messages_for_text_is_told():
    def reward(completions, answer, **row):
        return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]

    checked = guard_function(reward, "reward", "mine:reward", reward_fault)
    told = r"'list' object has no attribute 'strip' .*list of messages, its text completion\[-1\]"
    with pytest.raises(InputError, match=told):
        checked(completions=[[{"role": "assistant", "content": "4"}]], answer=["4"])
    with pytest.raises(InputError, match=r"no attribute 'strip' \([^;]*\)$"):
        checked(completions=[4], answer=["4"])


class Judge:
    def __call__(self, completions, scores, **row):
        return scores["right"]


async def later(completions, scores, **row):
    return scores["right"]


@pytest.mark.parametrize("reward", [Judge(), partial(Judge()), later], ids=["object", "partial", "async"])
def test_rewards_that_are_no_plain_functions_are_guarded_too(reward):
    checked = guard_function(reward, "reward", "mine:judge", reward_fault)
    assert inspect.iscoroutinefunction(checked) == inspect.iscoroutinefunction(reward) and checked.__name__

    def call(scores):
        made = checked(completions=["a"], scores=scores)
        return asyncio.run(made) if inspect.iscoroutine(made) else made

    assert call({"right": [1.0]}) == [1.0]
    with pytest.raises(InputError, match=r"reward: mine:judge raised KeyError: 'right' .*test_objects.py"):
        call({})
    with pytest.raises(InputError, match="reward: mine:judge gave 2 values for 1 completions"):
        call({"right": [1.0, 0.0]})
