"""The checkpoint of "codebook": a student that knows codes with different probabilities.

Demonstrations without a reference give codes with the probabilities of `BELIEFS`. With the problem's reference
they follow it, also where it is wrong.
"""

import random
from dataclasses import replace
from functools import partial

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.problem import BELIEFS, RIGHT, Tier, draw_filler, generate
from gear_rl.arena.codes import CODES, draw_code
from gear_rl.arena.task import FIRST_TRAIN_SEED, Reference
from tools.arena.recipe import Demonstration, Recipe, Stage, counted_chats, informed_prompts, shown

_REFERENCES: tuple[Reference, ...] = ("none", "trace", "shuffled")


def demonstration(rng: random.Random, longest: int, stage: Stage) -> Demonstration:
    """A user message and its completion: codes by belief, unless it has the problem's reference."""
    # Short problems more often than long ones, half of them without irrelevant words; never a held-out one. Two
    # symbols at least, as one has no gap.
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
        codes = [draw_code(BELIEFS[symbol], rng) for symbol in problem.symbols]
        context = problem.reference(kind, seed=rng.randrange(1 << 30))
    # Its own words: those of the reference are not to be copied.
    own = replace(problem, filler=draw_filler(len(problem.symbols), problem.words, rng))
    return shown(problem, context), (own.write(codes),)


RECIPE = Recipe(
    atoms=(
        codebook.LEAD,
        f" {codebook.DOT}",
        *(f" {word}" for word in (*codebook.SYMBOLS, *CODES, *codebook.FILLER)),
    ),
    texts=partial(informed_prompts, generate, "words"),
    demonstration=demonstration,
    counted=counted_chats,
    steps=900,
    # At first every problem has its reference, with random codes: with the beliefs from the start, reading did
    # not appear in 1100 steps.
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
