"""Whether the task "errands" keeps its promises, in a real environment for every episode. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

from gear_rl.arena.calls import Call, play
from gear_rl.arena.errands import problem as errands
from gear_rl.arena.errands.env import ErrandsEnv
from gear_rl.arena.errands.problem import DONE, WAIT, Problem
from gear_rl.arena.errands.tiers import TIERS
from gear_rl.arena.habits import CODES
from gear_rl.arena.self_test import expect
from gear_rl.arena.task import FIRST_TRAIN_SEED, HELD_OUT, Reference


def self_test(tiers: Iterable[str] = tuple(TIERS), num: int = len(HELD_OUT)) -> dict[str, int]:
    """How many of the first `num` problems of each tier passed; raises AssertionError at a broken promise.

    For every held-out problem: gold earns 1.0, waiting in between too, a planted fault costs one request, and
    another problem's reference names none of its items. Random codes are right about once in a hundred, and none
    of as many training problems is held out.

    >>> self_test(["easy"], num=32)
    {'easy': 32}
    """
    return {tier: _passed(tier, num) for tier in tiers}


def _passed(tier: str, num: int) -> int:
    rng = random.Random(0)
    size = TIERS[tier].requests
    hits, held_out = 0.0, set[str]()
    for seed in HELD_OUT[:num]:
        problem = errands.generate(seed, tier)
        held_out.add(problem.text)
        _check_problem(problem, tier, seed)
        hits += size * _reward(tier, seed, errands.sends(problem, rng.choices(CODES, k=size)))
    # A guess is right once in a hundred: six deviations of so many guesses.
    mean = size * num / 100
    expect(abs(hits - mean) <= 6 * mean**0.5, tier, -1)
    seeds = range(FIRST_TRAIN_SEED, FIRST_TRAIN_SEED + num)
    expect(not held_out & {errands.generate(seed, tier).text for seed in seeds}, tier, -1)
    return num


def _check_problem(problem: Problem, tier: str, seed: int) -> None:
    gold, (planted, wrong) = errands.sends(problem), errands.plant(problem, seed)
    size = len(problem.items)
    expect(_reward(tier, seed, gold) == 1.0, tier, seed)
    expect(_reward(tier, seed, [call for one in gold for call in (Call(WAIT, {}), one)]) == 1.0, tier, seed)
    expect([n for n in range(size) if planted[n] != gold[n]] == [wrong], tier, seed)
    # A right call after the wrong one changes nothing any more.
    expect(_reward(tier, seed, [*planted, gold[wrong]]) == (size - 1) / size, tier, seed)
    contexts = {r: str(errands.privileged_context(problem, r, seed)) for r in get_args(Reference)}
    expect(all(call.text in contexts["trace"] for call in gold), tier, seed)
    expect(not any(item in contexts["shuffled"] for item in problem.items), tier, seed)


def _reward(tier: str, seed: int, calls: Iterable[Call]) -> float:
    env = ErrandsEnv()
    env.reset(seed=seed, tier=tier)
    expect(play(env, calls, DONE)[1] == 0, tier, seed)
    return env.get_reward()
