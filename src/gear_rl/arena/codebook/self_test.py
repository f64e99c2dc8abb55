"""Whether the task "codebook" keeps its promises, on every held-out problem and in seconds. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

from gear_rl.arena.codebook import problem as codebook
from gear_rl.arena.codebook.problem import Problem
from gear_rl.arena.codebook.tiers import TIERS
from gear_rl.arena.habits import CODES
from gear_rl.arena.self_test import expect
from gear_rl.arena.task import FIRST_TRAIN_SEED, HELD_OUT, Reference


def self_test(tiers: Iterable[str] = tuple(TIERS)) -> dict[str, int]:
    """How many problems of each tier passed; raises AssertionError at the first broken promise.

    For every held-out problem: gold earns 1.0, a planted fault costs one code and stands where it says, and
    another problem's reference names none of its symbols. Random codes are right about once in a hundred, and
    none of as many training problems is held out.

    >>> self_test(["easy"])
    {'easy': 1024}
    """
    return {tier: _passed(tier) for tier in tiers}


def _passed(tier: str) -> int:
    rng = random.Random(0)
    size = TIERS[tier].symbols
    hits, held_out = 0.0, set[str]()
    for seed in HELD_OUT:
        problem = codebook.generate(seed, tier)
        held_out.add(problem.text)
        _check_problem(problem, tier, seed)
        guesses = codebook.write(problem, rng.choices(CODES, k=size))
        hits += size * codebook.share_right(guesses, codebook.solve(problem).answer)
    # A guess is right once in a hundred: six deviations of so many guesses.
    num = size * len(HELD_OUT)
    expect(abs(hits - num / 100) <= 6 * (num / 100) ** 0.5, tier, -1)
    seeds = range(FIRST_TRAIN_SEED, FIRST_TRAIN_SEED + len(HELD_OUT))
    expect(not held_out & {codebook.generate(seed, tier).text for seed in seeds}, tier, -1)
    return len(HELD_OUT)


def _check_problem(problem: Problem, tier: str, seed: int) -> None:
    gold, planted = codebook.solve(problem), codebook.plant(problem, seed)
    size = len(problem.symbols)
    expect(codebook.codebook_reward([gold.trace], [gold.answer]) == [1.0], tier, seed)
    taken = [*codebook.decisions(planted.completion, gold.answer)]
    expect([decision.index for decision in taken] == [*range(size)], tier, seed)
    expect([d.index for d in taken if not d.right] == [planted.decision], tier, seed)
    [reward] = codebook.codebook_reward([planted.completion], [gold.answer])
    expect(reward == (0.0 if problem.exact else (size - 1) / size), tier, seed)
    contexts = {r: codebook.privileged_context(problem, r, seed) for r in get_args(Reference)}
    expect(codebook.share_right(str(contexts["trace"]), gold.answer) == 1, tier, seed)
    expect(not [*codebook.decisions(str(contexts["shuffled"]), gold.answer)], tier, seed)
