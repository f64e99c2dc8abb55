"""Rewards by name."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Callable
from importlib.util import find_spec
from typing import cast

from gear_rl.arena.task import DEFAULT_TASK, dataset_task, get_task
from gear_rl.data.guarded import guarded_reward
from gear_rl.data.objects import import_object
from gear_rl.errors import InputError, did_you_mean

OUR_REWARDS = ("arena", "math", "tool_calls", "tool_calls_exact", "reasoning-gym", "word-problems")
"""Rewards that have a name here, beside those of ``trl.rewards`` and ``verifiers/NAME``."""


def load_reward(name: str, dataset: str = "arena") -> Callable[..., list[float | None]]:
    """The reward function that a name means, in TRL's signature; ``arena`` means that of the dataset's task.

    >>> load_reward("arena", "arena/chain/easy")(["ans 45", "ans 46"], answer=["45", "45"])
    [1.0, 0.0]
    """
    if name in OUR_REWARDS:
        return _our_reward(name, dataset)
    if name.startswith("verifiers/"):
        from gear_rl.data.adapters.verifiers import TasksetReward, load_taskset

        try:
            return TasksetReward(load_taskset(name.partition("/")[2]))
        except (ValueError, ImportError) as error:
            raise InputError(f"reward: {error}") from None
    if ":" in name:
        reward = import_object(name, "reward")
        if not callable(reward):
            raise InputError(f"reward: {name} is {type(reward).__name__}, not a function")
        return guarded_reward(cast(Callable[..., list[float | None]], reward), name)
    theirs = _trl_rewards()
    if name not in theirs:
        choices = [*OUR_REWARDS, *theirs]
        more = "" if theirs else " (those of trl.rewards need TRL, which is not installed)"
        raise InputError(
            f"reward: no reward {name!r}; {did_you_mean(name, choices)}, or give package.module:object{more}"
        )
    return theirs[name]


def _trl_rewards() -> dict[str, Callable[..., list[float | None]]]:
    """The functions of ``trl.rewards``; none where TRL is not installed."""
    if find_spec("trl") is None:
        return {}
    import trl.rewards

    return {word: getattr(trl.rewards, word) for word in dir(trl.rewards) if word.endswith("_reward")}


def _our_reward(name: str, dataset: str) -> Callable[..., list[float | None]]:
    if name == "arena":
        task = get_task(dataset_task(dataset)[0] if dataset.partition("/")[0] == "arena" else DEFAULT_TASK)
        if task.reward is None:
            raise InputError(
                f"reward: 'arena' is not for {dataset!r}, whose environment gives the reward; leave it out"
            )
        return cast(Callable[..., list[float | None]], task.reward)
    if name == "math":
        from gear_rl.data.rewards.maths import math_reward

        return math_reward
    if name == "reasoning-gym":
        from gear_rl.data.adapters.reasoning_gym import reasoning_gym_reward

        return reasoning_gym_reward
    if name == "word-problems":
        from gear_rl.data.word_problems import reward

        return cast(Callable[..., list[float | None]], reward)
    from gear_rl.data.rewards.tool_calls import tool_call_exact, tool_call_reward

    return tool_call_reward if name == "tool_calls" else tool_call_exact
