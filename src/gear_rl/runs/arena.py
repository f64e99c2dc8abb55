"""Training runs on the arena, as configurations."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from gear_rl.arena.task import TASKS, Task, get_task
from gear_rl.errors import InputError, did_you_mean
from gear_rl.runs.run_config import RunConfig


def rewards_for(credit: str | Mapping[str, Any], task: str) -> list[str] | None:
    """The rewards of a run on a task: several for a method that compares rewards, else None (the task's own).

    >>> rewards_for("gear", "chain"), rewards_for({"name": "crpo"}, "chain")
    (None, ['arena', 'gear_rl.arena.chain:steps_reward'])
    """
    from gear_rl.methods import METHODS

    name = credit if isinstance(credit, str) else str(credit.get("name"))
    compares = name in METHODS and "rewards_BR" in METHODS[name]().needs
    return ([*task_of(task).rewards] or None) if compares else None


def task_of(name: str, tier: str | None = None) -> Task:
    """The task with a name; ``InputError`` if there is none, or it has no such tier.

    >>> task_of("chain", "esy")
    Traceback (most recent call last):
    gear_rl.errors.InputError: --tier: the task has no tier 'esy'; did you mean easy?
    """
    if name not in TASKS:
        raise InputError(f"--task: no task {name!r}; {did_you_mean(name, TASKS)}")
    task = get_task(name)
    if tier is not None and tier not in task.budgets:
        raise InputError(f"--tier: the task has no tier {tier!r}; {did_you_mean(tier, task.budgets)}")
    return task


def sampling_seed(seed: int, number: int) -> int:
    """The seed of the evaluation ``number`` of a run, below 2^31 and different from its training seeds.

    >>> [sampling_seed(0, 0), sampling_seed(0, 1), sampling_seed(1, 0)]
    [1265397694, 888842379, 727488016]
    """
    digest = hashlib.sha256(f"evaluation {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def sampled_rewards(
    solve: Callable[..., Sequence[float | None]],
    rows: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    samples: int = 1,
) -> list[list[float]]:
    """The rows' rewards in each of ``samples`` samplings of that seed; without those that no function judged.

    ``InputError`` for an infinite reward, and where none is left.

    >>> sampled_rewards(lambda rows, *, seed: [0.5, None], [{}, {}], seed=0, samples=2)
    [[0.5], [0.5]]
    """
    seeds = [sampling_seed(seed, number) for number in range(samples)]
    found = [[reward for reward in solve(rows, seed=one) if reward is not None] for one in seeds]
    if not all(found):
        raise InputError("reward: every function gave None for all held-out answers; give a number for some")
    for reward in chain.from_iterable(found):
        if not math.isfinite(reward):
            raise InputError(
                f"reward: {reward} for a held-out answer; give a finite number, or None to abstain"
            )
    return found


def arena_config(
    task: str,
    tier: str,
    credit: str | dict[str, Any],
    *,
    seed: int,
    steps: int,
    output_dir: str,
    rollouts_per_step: int | None = None,
    reward: list[str] | None = None,
    **trainer: Any,
) -> RunConfig:
    """The configuration of a method on a tier, with the tier's budget; ``trainer`` are keys of ``GEARConfig``.

    ``reward`` replaces the task's own.

    >>> config = arena_config("chain", "easy", "gear", seed=0, steps=5, output_dir="runs/easy")
    >>> config.dataset, config.reward, config.trainer["max_steps"]
    ('arena/chain/easy', 'arena', 5)
    """
    chosen = task_of(task, tier)
    budget = chosen.budgets[tier]
    return RunConfig(
        model="arena",
        dataset=f"arena/{chosen.name}/{tier}",
        reward=reward or rewards_for(credit, task) or (None if chosen.agent else "arena"),
        environment="arena" if chosen.agent else None,
        credit=credit,
        trainer={
            "output_dir": output_dir,
            "seed": seed,
            "max_steps": steps,
            "learning_rate": budget.learning_rate,
            "lr_scheduler_type": "constant",
            "per_device_train_batch_size": rollouts_per_step or budget.rollouts_per_step,
            "gradient_accumulation_steps": 1,
            "num_generations": budget.num_generations,
            "max_completion_length": budget.max_completion_tokens,
            "save_strategy": "no",
            "max_tool_calling_iterations": budget.max_tool_calls,
            **trainer,
        },
    )
