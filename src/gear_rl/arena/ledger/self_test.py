"""Whether the task "ledger" keeps its promises: with a real database for every episode. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.env import environment
from gear_rl.arena.ledger.episodes import Fault, episode, plant
from gear_rl.arena.ledger.problem import Call, Problem
from gear_rl.arena.ledger.tiers import TIERS
from gear_rl.arena.self_test import expect
from gear_rl.arena.task import FIRST_TRAIN_SEED, HELD_OUT


def self_test(tiers: Iterable[str] = tuple(TIERS), num: int = len(HELD_OUT)) -> dict[str, int]:
    """How many of the first `num` problems of each tier passed; raises AssertionError at a broken promise.

    For every held-out problem: gold earns 1.0, its first calls alone earn 0.0, planted faults of both kinds earn
    0.0 and leave gold at the turn they name. Random payments earn next to nothing, and none of as many training
    problems is held out.

    >>> self_test(["easy"], num=32)
    {'easy': 32}
    """
    return {tier: _passed(tier, num) for tier in tiers}


def _passed(tier: str, num: int) -> int:
    rng = random.Random(0)
    hits = 0.0
    held_out: set[str] = set()
    for seed in HELD_OUT[:num]:
        problem = ledger.generate(seed, tier)
        held_out.add(problem.text)
        _check_problem(problem, tier, seed)
        hits += episode(problem, [_random_payment(problem, rng)]).reward
    # 1024 guesses at less than 1 in 2000: eight hits are ten deviations away.
    expect(hits <= 8, tier, -1)
    seeds = range(FIRST_TRAIN_SEED, FIRST_TRAIN_SEED + num)
    expect(not held_out & {ledger.generate(seed, tier).text for seed in seeds}, tier, -1)
    return num


def _check_problem(problem: Problem, tier: str, seed: int) -> None:
    whole = episode(problem, irreversible=TIERS[tier].irreversible)
    expect((whole.reward, whole.errors) == (1.0, 0), tier, seed)
    env = environment(tier)()
    env.reset(seed=seed, tier=tier)
    for call in ledger.calls(problem):
        expect(env.get_reward() == 0.0, tier, seed)
        getattr(env, call.name)(**call.arguments)
    expect(env.get_reward() == 1.0, tier, seed)
    for kind in get_args(Fault):
        planted = plant(problem, seed, kind)
        begin = 2 * planted.turn
        expect(planted.messages[:begin] == whole.messages[:begin], tier, seed)
        expect(planted.messages[begin] != whole.messages[begin], tier, seed)


def _random_payment(problem: Problem, rng: random.Random) -> Call:
    source, target = rng.sample(sorted(problem.world.balances), 2)
    return Call("pay", {"source": source, "target": target, "amount": rng.randint(10, 99)})
