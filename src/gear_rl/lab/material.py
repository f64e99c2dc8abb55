"""Completions with a known fault as an engine would see them: groups of two, with rewards and tools' answers.

The arena's, with a planted fault, are made here; a user's in `gear_rl.lab.marked`. Makes no trainer.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gear_rl.arena.task import DEFAULT_TASK, DEFAULT_TIER, TEMPLATE, Case, Task
from gear_rl.credit.credit_config import CreditConfig
from gear_rl.credit.own_loop import LocalEngine
from gear_rl.data.rewards.catalogue import load_reward
from gear_rl.environments import RESERVED_METHODS
from gear_rl.errors import InputError
from gear_rl.rollouts import RolloutBatch
from gear_rl.runs.arena import rewards_for, task_of
from gear_rl.runs.machine import use_few_threads
from gear_rl.tensor.advantage import group_relative_advantage
from gear_rl.tensor.lists import float_list


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case as an engine would see it: two rollouts of one prompt, the one with the fault first."""

    case: Case
    row: dict[str, Any]
    """The dataset's row; what the teacher sees is in it, or with the environment."""
    messages: tuple[Any, Any]
    """The completions as reward functions see them."""
    environments: tuple[Any, Any] | None = None
    """The environments that the tools were called in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Completions with a known fault, and the model that they go through."""

    engine: LocalEngine
    config: CreditConfig
    batch: int
    """Completions in a credit step: some methods compare those of a batch."""
    pairs: Sequence[Pair]
    blind: Sequence[Pair]
    """The same, for a teacher that sees the solutions of other problems; without those that have no other."""
    rewards: Callable[[Sequence[Pair], Mapping[str, Any]], Float[Tensor, "B R"]]
    """The rewards of both completions of each pair, for a method's settings; one column for each function."""
    about: dict[str, Any]
    """The document's own keys."""


def arena_material(task: str = DEFAULT_TASK, tier: str = DEFAULT_TIER, n: int = 256) -> Material:
    """Held-out problems of the arena, each with a right completion and one with a planted fault.

    ``InputError`` for an unknown task or tier, and for another number than 1 to 1024.

    >>> arena_material("errands", "easy", n=8).about["fault"]
    'code'
    """
    from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, load

    of = task_of(task, tier)
    if not 1 <= n <= 1024:
        raise InputError(f"--n: {n} is not possible; there are 1024 held-out problems")
    use_few_threads()
    model, tokenizer = load(task=of.name)
    template = dict(CHAT_TEMPLATE_KWARGS)
    if of.environment is not None:
        template["tools"] = _tools(of.environment())
    size = of.budgets[tier].rollouts_per_step

    def pairs(reference: Any) -> list[Pair]:
        return [_play_case(case, of, tokenizer) for case in of.cases(tokenizer, tier, n, reference=reference)]

    return Material(
        engine=LocalEngine(model, tokenizer, chat_template_kwargs=template, batch_size=size),
        config=CreditConfig(teacher_prompt_template=TEMPLATE, answer_pattern=of.answer_pattern),
        batch=size,
        pairs=pairs("trace"),
        blind=pairs("shuffled"),
        rewards=lambda pairs, credit: _rewards_of(pairs, of, tier, credit),
        about={
            "what": "absolute credit on completions with one planted fault; the fault is the first wrong token",
            "task": of.name,
            "tier": tier,
            "fault": of.fault,
            "n": n,
        },
    )


def _tools(environment: Any) -> list[Any]:
    """The methods that a model may call, as TRL finds them."""
    names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    return [
        getattr(environment, name)
        for name in names
        if not name.startswith("_") and name not in RESERVED_METHODS
    ]


_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def _play_case(case: Case, task: Task, tokenizer: Any) -> Pair:
    """The case with its messages; of an agent's task the calls are made."""
    texts = [
        [tokenizer.decode(ids, skip_special_tokens=True) for ids in turns[::2]]
        for turns in (case.faulty, case.right)
    ]
    if task.environment is None:
        wrong, right = ([{"role": "assistant", "content": text}] for [text] in texts)
        return Pair(case=case, row=case.row, messages=(wrong, right))
    environments = task.environment(), task.environment()
    messages: list[list[dict[str, Any]]] = []
    for environment, turns in zip(environments, texts, strict=True):
        environment.reset(**case.row)
        said: list[dict[str, Any]] = []
        for text in turns:
            calls = [json.loads(call) for call in _CALL.findall(text)]
            written = (
                {"tool_calls": [{"type": "function", "function": call} for call in calls]} if calls else {}
            )
            said.append({"role": "assistant", "content": _CALL.sub("", text).strip(), **written})
            for call in calls:
                answer = getattr(environment, call["name"])(**call["arguments"])
                said.append({"role": "tool", "name": call["name"], "content": str(answer)})
        messages.append(said)
    return Pair(case=case, row=case.row, messages=(messages[0], messages[1]), environments=environments)


def _rewards_of(
    pairs: Sequence[Pair], task: Task, tier: str, credit: Mapping[str, Any]
) -> Float[Tensor, "B R"]:
    """The task's own rewards, or those that the method compares."""
    if task.environment is not None:
        values = [[one.get_reward()] for pair in pairs for one in pair.environments or ()]
        return torch.tensor(values, dtype=torch.float32)
    names = rewards_for(credit, task.name) or ["arena"]
    completions = [message for pair in pairs for message in pair.messages]
    columns = {key: [pair.row[key] for pair in pairs for _ in range(2)] for key in pairs[0].row}
    each = [
        load_reward(name, f"arena/{task.name}/{tier}")(completions=completions, **columns) for name in names
    ]
    return torch.tensor(each, dtype=torch.float32).T


def rollouts_of(pairs: Sequence[Pair], rewards_BR: Float[Tensor, "B R"], engine: LocalEngine) -> RolloutBatch:
    """The completions of some pairs as a batch of groups of two."""
    turns = [turns for pair in pairs for turns in (pair.case.faulty, pair.case.right)]
    reward_B = rewards_BR.to(next(engine.model.parameters()).device).sum(-1)
    batch = engine.rollouts(
        [pair.row for pair in pairs for _ in range(2)],
        [[*chain.from_iterable(one)] for one in turns],
        group_relative_advantage(reward_B, 2),
        group=[b // 2 for b in range(len(turns))],
        rewards=float_list(reward_B),
        sampled=[[place % 2 == 0 for place, turn in enumerate(one) for _ in turn] for one in turns],
    )
    return replace(
        batch,
        messages=[message for pair in pairs for message in pair.messages],
        rewards_BR=rewards_BR.to(reward_B.device),
        environments=[one for pair in pairs for one in pair.environments or ()] or None,
    )
