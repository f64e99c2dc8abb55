"""Whether the task "chain" keeps its promises, on every held-out problem and in seconds. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.problem import Problem
from gear_rl.arena.chain.tiers import TIERS
from gear_rl.arena.self_test import expect
from gear_rl.arena.task import FIRST_TRAIN_SEED, HELD_OUT, Reference


def self_test(tiers: Iterable[str] = tuple(TIERS)) -> dict[str, int]:
    """How many problems of each tier passed; raises AssertionError at the first broken promise.

    For every held-out problem: gold earns 1.0, its first steps alone are valid and earn 0.0, a planted fault
    earns 0.0 and departs from gold where it says. Random answers earn about one in a hundred, and none of as
    many training problems is held out.

    >>> self_test(["easy"])
    {'easy': 1024}
    """
    return {tier: _passed(tier) for tier in tiers}


def _passed(tier: str) -> int:
    rng = random.Random(0)
    hits = 0
    held_out: set[str] = set()
    for seed in HELD_OUT:
        problem = chain.generate(seed, tier)
        held_out.add(problem.text)
        _check_problem(problem, tier, seed)
        hits += chain.correct(f"ans {rng.randrange(problem.modulus):02d}", chain.solve(problem).answer)
    # 1024 guesses at 1 in 100: thirty hits are six deviations away.
    expect(hits <= 30, tier, -1)
    seeds = range(FIRST_TRAIN_SEED, FIRST_TRAIN_SEED + len(HELD_OUT))
    expect(not held_out & {chain.generate(seed, tier).text for seed in seeds}, tier, -1)
    return len(HELD_OUT)


def _check_problem(problem: Problem, tier: str, seed: int) -> None:
    gold, planted = chain.solve(problem), chain.plant(problem, seed)
    rewards = chain.chain_reward([gold.trace, planted.completion], [gold.answer] * 2)
    expect(rewards == [1.0, 0.0], tier, seed)
    prefixes = [gold.trace[:end] for end in range(0, len(gold.trace), 13)]  # a step is 13 characters
    expect(all(_is_prefix(prefix, problem) for prefix in prefixes), tier, seed)
    expect(not any(chain.chain_reward(prefixes, [gold.answer] * len(prefixes))), tier, seed)
    expect(_is_prefix(planted.completion[: planted.char], problem), tier, seed)
    expect(not _is_prefix(planted.completion[: planted.char + 2], problem), tier, seed)
    expect(all(chain.render(problem, r, seed) for r in get_args(Reference)), tier, seed)


def _is_prefix(text: str, problem: Problem) -> bool:
    """Whether `text` can still become the right completion."""
    return chain.solve(problem).trace.startswith(text)
