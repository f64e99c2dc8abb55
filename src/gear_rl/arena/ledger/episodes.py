"""Episodes of the task "ledger": calls made in a real environment, right ones and ones with a planted fault.

Knows no model and no trainer.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gear_rl.arena.calls import Call, Messages, play, render_ids
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.env import LedgerEnvGreetRate, tools
from gear_rl.arena.ledger.problem import Plan, Problem
from gear_rl.arena.ledger.tiers import LedgerTier

Fault = Literal["relation", "argument"]
"""What is wrong with a planted call: the tool (another relation), or payer and payee (mixed up)."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What an assistant did, what the tools answered, and what it earned.

    >>> right = episode(ledger.generate(0, "easy"))
    >>> right.messages[-1], right.reward, right.errors
    ({'role': 'assistant', 'content': 'done'}, 1.0, 0)
    """

    messages: Messages
    """The completion: assistant and tool messages, without the prompt."""
    reward: float
    errors: int
    """How many calls the tools refused."""


@dataclass(frozen=True, slots=True)
class Planted:
    """An episode with exactly one wrong call; the later ones follow from what the tools answered.

    >>> planted = plant(ledger.generate(0), seed=0)
    >>> planted.turn, planted.kind
    (1, 'relation')
    """

    messages: Messages
    turn: int
    """The assistant turn of the wrong call, from 0."""
    kind: Fault


def episode(problem: Problem, made: Sequence[Call] | None = None, *, irreversible: bool = False) -> Episode:
    """The calls, by default gold, made in a real environment, each in a turn of its own; then "done".

    >>> episode(ledger.generate(0)).reward
    1.0
    """
    env = LedgerEnvGreetRate()
    env._begin(problem, irreversible)  # pyright: ignore[reportPrivateUsage]
    messages, errors = play(env, ledger.calls(problem) if made is None else made, ledger.DONE)
    return Episode(messages, env.get_reward(), errors)


def plant(problem: Problem, seed: int, kind: Fault = "relation") -> Planted:
    """An episode with one wrong call at a known turn, which earns 0.

    A wrong relation stands where the instruction has an alias: that is where the student errs. A wrong look-up
    can be refused at the payment, so faults that are not come first; and it can heal, so a plain word is
    misread where no misread alias costs the reward. Raises ValueError where no fault does.

    >>> calls = [m for m in plant(ledger.generate(0, "easy"), seed=0).messages if m["role"] == "assistant"]
    >>> calls[0]["tool_calls"][0]["function"]["name"]
    'boss'
    """
    rng = random.Random(seed)
    right = ledger.right_plan(problem)
    if kind == "argument":
        choices = [[(len(ledger.calls(problem)) - 1, replace(right, swapped=True))]]
    else:
        choices = [_misread(problem, right, rng, alias=True), _misread(problem, right, rng, alias=False)]
    for faults in choices:
        refused: Planted | None = None
        for turn, plan in faults:
            made = episode(problem, ledger.calls(problem, plan))
            if made.reward == 0.0:
                planted = Planted(made.messages, turn, kind)
                if not made.errors:
                    return planted
                refused = refused or planted
        if refused is not None:
            return refused
    raise ValueError(f"no {kind} fault costs the reward of {problem.text!r}; take another problem")


def _misread(problem: Problem, right: Plan, rng: random.Random, *, alias: bool) -> list[tuple[int, Plan]]:
    """Every plan with one alias, or one plain word, misread and the turn of that call, in random order."""
    faults: list[tuple[int, Plan]] = []
    words = (*problem.source.words, *problem.target.words)
    relations = (*right.source, *right.target)
    cut = len(right.source)
    for turn, (word, relation) in enumerate(zip(words, relations, strict=True)):
        for wrong in ledger.confusable(relation) if (word in ledger.ALIASES) == alias else ():
            changed = (*relations[:turn], wrong, *relations[turn + 1 :])
            faults.append((turn, Plan(changed[:cut], changed[cut:])))
    rng.shuffle(faults)
    return faults


def prompt_ids(
    tokenizer: Any, problem: Problem, tier: str | LedgerTier = "default", context: str | None = None
) -> list[int]:
    """The ids of the student's prompt, or of the teacher's where a privileged context is given."""
    return render_ids(tokenizer, problem.text, tools(tier), context)
