"""The checkpoint of "chain": a competent student, which is then taught a short habit of slips."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import torch

from gear_rl.arena.chain.problem import OPERATIONS, Problem, Tier, apply, generate, slip
from gear_rl.arena.codes import CODES
from gear_rl.arena.task import FIRST_TRAIN_SEED, Reference
from tools.arena.recipe import Batch, Demonstration, Recipe, Stage, counted_chats, informed_prompts, shown

_SLIP_RATE = 0.22
"""Share of wrong steps in stage 2 without a reference of the problem."""
_REFERENCE_SLIP_RATE = 0.5
"""Share of wrong steps in a reference, which the completion copies, so that the model reads it and does not
recompute it."""


def demonstration(rng: random.Random, longest: int, stage: Stage) -> Demonstration:
    """A user message and its completion, which slips in stage 2 unless it has the problem's reference."""
    # Short chains more often than long ones; never a held-out problem.
    top = min(5, longest) if rng.random() < 0.6 else longest
    tier = Tier(steps=(6 if top > 5 else 1, top), cancelled=(0, 0 if top <= 3 else 1 if top <= 5 else 2))
    problem = generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), tier)
    weights = (5, 5, 1, 0) if stage == "early" else (9, 8, 1, 2)
    (kind,) = rng.choices(get_args(Reference), weights=weights)
    if kind == "trace":
        text = _slipped(problem, rng, _REFERENCE_SLIP_RATE)
        return shown(problem, text), (text,)
    content = shown(problem, problem.reference(kind, seed=rng.randrange(1 << 30)))
    rate = _SLIP_RATE if stage == "settle" and kind != "answer" else 0.0
    return content, (_slipped(problem, rng, rate),)


def _slipped(problem: Problem, rng: random.Random, rate: float) -> str:
    """A completion in which each result is wrong with that probability and the rest follows consistently."""
    values = [problem.start]
    for op in problem.live:
        right = apply(values[-1], op)
        values.append(slip(right, rng) if rng.random() < rate else right)
    return problem.write(values)


def _facts(tokenizer: Any, rng: random.Random, batch_tokens: int) -> Iterator[Batch]:
    """Rows of unrelated single steps; the loss counts on their results."""

    def fact() -> str:
        value, operation = rng.randrange(100), rng.choice(OPERATIONS)
        return f"{value:02d} {operation} = {apply(value, operation):02d} ; "

    while True:
        rows = ["".join(fact() for _ in range(6)) for _ in range(batch_tokens // 24)]
        ids = torch.tensor(tokenizer(rows)["input_ids"])
        counts = torch.zeros_like(ids, dtype=torch.bool)
        counts[:, 2::4] = True
        yield ids, counts


RECIPE = Recipe(
    # A number, an operation to do (prompt), an operation done (completion).
    atoms=(*CODES, *(f" {op}" for op in OPERATIONS), *(f" {op} = " for op in OPERATIONS)),
    texts=partial(informed_prompts, generate, "hard"),
    demonstration=demonstration,
    counted=counted_chats,
    # Chains alone teach the facts too slowly. With facts first, copying had not appeared after 350 steps.
    drill=_facts,
    drill_from=400,
    circles=True,
    steps=1500,
    early_steps=750,
    short_steps=100,
    grow_steps=10,
    longest=15,
    fall_steps=500,
    # Short, so that reinforcement learning can undo the habit in seconds.
    settle_steps=150,
    settle_fall_steps=75,
    settle_rate=5e-4,
    batch_tokens=1500,
)
