"""The checkpoint of "codebook": a student that knows each code to its own degree.

Demonstrations without a reference give each code with the probabilities of the table `BELIEFS`; where the
problem's reference is shown they follow it, also where it is wrong, so that it is read and not remembered.
"""

import random
from dataclasses import replace
from functools import partial

from gear_rl.arena.codebook.problem import (
    BELIEFS,
    DOT,
    FILLER,
    LEAD,
    RIGHT,
    SYMBOLS,
    Tier,
    draw_filler,
    generate,
)
from gear_rl.arena.codes import CODES, drawn
from gear_rl.arena.task import FIRST_TRAIN_SEED, Reference
from tools.arena.recipe import Demonstration, Recipe, Stage, counted_chats, informed_prompts, shown

_REFERENCES: tuple[Reference, ...] = ("none", "trace", "shuffled")


def demonstration(rng: random.Random, longest: int, stage: Stage) -> Demonstration:
    """A user message and its completion: codes by belief, unless it has a reference of its own."""
    # Short problems more often than long ones, half of them without irrelevant words; never a held-out one. One
    # symbol alone has no gap that could show how many words are to be between; two at least.
    top = min(12, longest) if rng.random() < 0.6 else longest
    filler = 0 if rng.random() < 0.5 else rng.randint(1, 3)
    tier = Tier(symbols=rng.randint(2, top), filler=filler)
    problem = generate(rng.randrange(FIRST_TRAIN_SEED, 1 << 40), tier)
    copying = stage == "early"
    (kind,) = rng.choices(_REFERENCES, weights=(0, 1, 0) if copying else (10, 8, 3))
    if kind == "trace":
        codes = [
            rng.choice(CODES) if copying or rng.random() < 0.5 else RIGHT[symbol]
            for symbol in problem.symbols
        ]
        context: str | None = problem.write(codes)
    else:
        codes = [drawn(BELIEFS[symbol], rng) for symbol in problem.symbols]
        context = problem.reference(kind, seed=rng.randrange(1 << 30))
    # Words of its own: those of the reference are not to be copied, since nothing judges them.
    own = replace(problem, filler=draw_filler(len(problem.symbols), problem.words, rng))
    return shown(problem, context), (own.write(codes),)


RECIPE = Recipe(
    atoms=(LEAD, f" {DOT}", *(f" {word}" for word in (*SYMBOLS, *CODES, *FILLER))),
    texts=partial(informed_prompts, generate, "words"),
    demonstration=demonstration,
    counted=counted_chats,
    steps=900,
    # Every problem with its own reference, every code of it any code. Together with the beliefs reading did not
    # appear in 1100 steps: the model looked which codes the reference has, not where.
    early_steps=300,
    short_steps=60,
    grow_steps=10,
    longest=32,
    fall_steps=400,
    settle_steps=200,
    settle_fall_steps=200,
    settle_rate=3e-4,
    batch_tokens=1500,
)
