"""A training run on the arena, as a configuration: what the demo, the bench and the tests share."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.tiers import DEMOS, LEDGER_DEMOS, TASKS, Demo
from gear_rl.errors import InputError, did_you_mean
from gear_rl.runs.config import RunConfig

TWO_REWARDS = ["arena", "gear_rl.arena.chain:steps_reward"]
"""On the task chain, for methods that compare rewards."""


def rewards_for(credit: str | Mapping[str, Any], task: str) -> list[str] | None:
    """The rewards of a run on that task: two for a method of the catalogue that compares rewards, else None.

    None is the task's own reward.

    >>> rewards_for("gear", "chain"), rewards_for({"name": "crpo"}, "chain") == TWO_REWARDS
    (None, True)
    """
    from gear_rl.methods import METHODS

    name = credit if isinstance(credit, str) else str(credit.get("name"))
    compares = name in METHODS and "rewards_BR" in METHODS[name]().needs
    return TWO_REWARDS if compares and task == "chain" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaTask:
    """What a run asks of a task of the arena."""

    demos: Mapping[str, Demo]
    held_out: range
    rows: Callable[..., list[dict[str, Any]]]
    fingerprint: Callable[[str, int], str]
    solve: Callable[[Any, list[dict[str, Any]], int], list[float | None]]
    """One rollout per row through the trainer, sampled with a seed, and its reward."""
    settings: dict[str, Any]
    """Of the run and of the trainer."""


def task_of(name: str, tier: str) -> ArenaTask:
    """The task of that name; ``InputError`` if there is none, or if it has no such tier."""
    if name not in TASKS:
        raise InputError(f"--task: no task {name!r}; {did_you_mean(name, TASKS)}")
    task = _chain() if name == "chain" else _ledger()
    if tier not in task.demos:
        raise InputError(f"--tier: the task has no tier {tier!r}; {did_you_mean(tier, task.demos)}")
    return task


def _chain() -> ArenaTask:
    from gear_rl.arena.chain import problem as chain
    from gear_rl.arena.evaluate import accuracy

    return ArenaTask(
        demos=DEMOS,
        held_out=chain.HELD_OUT,
        rows=chain.rows,
        fingerprint=chain.fingerprint,
        solve=lambda trainer, rows, seed: [
            *accuracy(trainer.model, trainer.processing_class, rows, seed=seed)
        ],
        settings={"reward": "arena"},
    )


def _ledger() -> ArenaTask:
    from gear_rl.arena.ledger import problem as ledger

    return ArenaTask(
        demos=LEDGER_DEMOS,
        held_out=ledger.HELD_OUT,
        rows=ledger.rows,
        fingerprint=ledger.fingerprint,
        solve=lambda trainer, rows, seed: trainer.solve(rows, seed=seed),
        settings={"environment": "arena"},
    )


def sampling_seed(seed: int, number: int) -> int:
    """The seed that sampling ``number`` of a run's evaluations is drawn with, from 0 to 2^31 - 1.

    Another for every run and every number, and none that a run trains with: those are small numbers.

    >>> [sampling_seed(0, 0), sampling_seed(0, 1), sampling_seed(1, 0)]
    [1265397694, 888842379, 727488016]
    """
    digest = hashlib.sha256(f"evaluation {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def accuracies(
    task: ArenaTask, trainer: Any, problems: list[dict[str, Any]], *, seed: int, samples: int = 1
) -> list[float]:
    """The share of the problems that are solved, in each of ``samples`` samplings of the run with that seed."""
    return [
        sum(reward or 0.0 for reward in task.solve(trainer, problems, sampling_seed(seed, number)))
        / len(problems)
        for number in range(samples)
    ]


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
    """The run of a method on a tier with the tier's own budget; ``trainer`` are further keys of ``GEARConfig``.

    ``reward`` replaces the task's own. Nothing is loaded.
    """
    chosen = task_of(task, tier)
    budget = chosen.demos[tier]
    settings: dict[str, Any] = chosen.settings if reward is None else chosen.settings | {"reward": reward}
    return RunConfig(
        model="arena",
        dataset=f"arena/{task}/{tier}",
        credit=credit,
        lora=None,
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
        **settings,
    )
