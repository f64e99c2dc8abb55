"""Rewards by name."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from gear_rl.arena.task import DEFAULT_TASK, dataset_task, get_task
from gear_rl.data.objects import guard_function, reward_fault
from gear_rl.errors import InputError, did_you_mean, input_errors
from gear_rl.user_objects import import_object

Reward = Callable[..., Sequence[float | None]]

_OURS = {
    "math": "gear_rl.data.rewards.maths:math_reward",
    "tool_calls": "gear_rl.data.rewards.tool_calls:tool_call_reward",
    "tool_calls_exact": "gear_rl.data.rewards.tool_calls:tool_call_exact",
    "reasoning-gym": "gear_rl.data.adapters.reasoning_gym:reasoning_gym_reward",
}
OUR_REWARDS = ("arena", *_OURS)
"""Rewards that have a name here, beside those of ``trl.rewards`` and ``verifiers/NAME``."""


def load_reward(name: str, dataset: str = "arena") -> Reward:
    """The reward function that a name means, in TRL's signature; ``arena`` means that of the dataset's task.

    >>> load_reward("arena", "arena/chain/easy")(["ans 45", "ans 46"], answer=["45", "45"])
    [1.0, 0.0]
    """
    if name in _OURS:
        return resolve_name(_OURS[name])
    if name == "arena":
        task = get_task(dataset_task(dataset)[0] if dataset.partition("/")[0] == "arena" else DEFAULT_TASK)
        if task.reward is None:
            raise InputError(
                f"reward: 'arena' is not for {dataset!r}, whose environment gives the reward; leave it out"
            )
        return task.reward
    if name.startswith("verifiers/"):
        from gear_rl.data.adapters.verifiers import TasksetReward, load_taskset

        with input_errors("reward: "):
            return TasksetReward(load_taskset(name.partition("/")[2]))
    if ":" in name:
        reward: Any = import_object(name, "reward")
        if not callable(reward):
            raise InputError(f"reward: {name} is {type(reward).__name__}, not a function")
        return guard_function(reward, "reward", name, reward_fault)
    theirs: dict[str, Reward] = {}
    if find_spec("trl") is not None:
        import trl.rewards

        theirs = {word: getattr(trl.rewards, word) for word in dir(trl.rewards) if word.endswith("_reward")}
    if name not in theirs:
        more = "" if theirs else " (those of trl.rewards need TRL, which is not installed)"
        raise InputError(
            f"reward: no reward {name!r}; {did_you_mean(name, [*OUR_REWARDS, *theirs])}, or give "
            f"package.module:object{more}"
        )
    return theirs[name]
