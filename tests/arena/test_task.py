"""The catalogue: what holds for every task, and another one as an object and a line."""

import json
from typing import Any, get_args

import pytest

from gear_rl.arena import model
from gear_rl.arena.task import (
    HELD_OUT,
    Completion,
    Problem,
    Reference,
    Task,
    all_tasks,
    get_task,
)
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.errors import InputError
from gear_rl.runs.run_config import load_config

every_task = pytest.mark.parametrize("task", all_tasks(), ids=lambda task: task.name)


def _reward(task: Task, problem: Problem, row: dict[str, Any], completion: Completion) -> float:
    """The reward of a completion; an agent's is played in a real environment."""
    if task.reward is not None:
        return task.reward([*completion], answer=[problem.answer])[0]
    environment: Any = task.environment() if task.environment else None
    environment.reset(**row)
    for call, answer in zip(completion[:-1:2], completion[1::2], strict=True):
        made = json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        assert getattr(environment, made["name"])(**made["arguments"]) == answer
    return environment.get_reward()


@every_task
def test_every_tier_keeps_the_promises(task: Task) -> None:
    """The worked solution earns 1, a planted fault less, and no prompt shows either."""
    assert {"easy", "default", "hard"} <= set(task.budgets) and task.laboratory_tier in task.budgets
    assert set(task.tuned_on) | set(task.without_truth) <= set(task.budgets)
    for tier in task.budgets:
        for seed, row in enumerate(task.rows(tier, num=48, first_seed=0)):
            problem = task.generate(seed, tier)
            assert problem == task.generate(seed, tier)
            assert row["prompt"] == [{"role": "user", "content": problem.text}]
            assert _reward(task, problem, row, problem.solve()) == 1.0
            assert _reward(task, problem, row, problem.plant(seed)) < 1.0
            seen = {kind: problem.reference(kind, seed) for kind in get_args(Reference)}
            assert seen["none"] is None and len({*seen.values()}) == 4
            assert row.get("privileged_context", seen["trace"]) == seen["trace"]
    with pytest.raises(ValueError, match="mix held-out problems"):
        task.rows("easy", num=2, first_seed=task.held_out.stop - 1)


@every_task
def test_held_out_problems_are_never_trained_on(task: Task) -> None:
    for tier in ("easy", "default"):
        held_out = {task.generate(seed, tier).text for seed in HELD_OUT}
        assert not held_out & {task.generate(seed, tier).text for seed in range(1024, 2048)}


@every_task
def test_the_fault_is_the_first_wrong_token(task: Task) -> None:
    tokenizer = model.load(task=task.name)[1]
    for seed, case in enumerate(task.cases(tokenizer, "hard", 12)):
        problem = task.generate(seed, "hard")
        texts = [tokenizer.decode(turn[:-1]) for turn in case.faulty[::2]]
        assert tuple(texts) == problem.plant(seed)[::2]
        parts = model.tokens(tokenizer, problem.plant(seed))
        ids = [i for part in parts for i in part]
        gold = [i for part in model.tokens(tokenizer, problem.solve()) for i in part]
        assert len(case.choices) == len(ids) and case.choices[case.fault.start]
        assert ids[: case.fault.start] == gold[: case.fault.start]
        assert ids[case.fault.start] != gold[case.fault.start]
        assert case.row == task.rows("hard", num=1, first_seed=seed)[0]


@pytest.mark.parametrize(
    ("task", "sha256"),
    [
        ("chain", "26f0a56646bb17c0fe07e1f808f0c1cf2cd4e6acad71a2d83e23f16ce7b2014b"),
        ("codebook", "4359a3ed563446f806292613a83a359fdb7530bb2617e32690ed71f61549bea3"),
        ("errands", "29349ac9e9a1adec296b68f8cee527ae4b4c1e82b4b96a8c52568f2bc022de03"),
    ],
)
def test_the_held_out_problems_are_the_published_ones(task: str, sha256: str) -> None:
    assert get_task(task).fingerprint("default", 1024) == sha256


def test_a_dataset_of_an_agent_brings_its_environment() -> None:
    assert load_config(None, ["--model", "arena", "--dataset", "arena/errands"]).environment == "arena"
    with pytest.raises(InputError, match="reward: 'arena' is not for 'arena/errands'"):
        load_reward("arena", "arena/errands")
