"""Whether the task keeps its promises: exhaustive over the held-out problems, in seconds. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

from gear_rl.arena.chain import problem as chain
from gear_rl.arena.chain.problem import Problem, Reference
from gear_rl.arena.ledger import problem as ledger
from gear_rl.arena.ledger.env import environment
from gear_rl.arena.ledger.episodes import episode, plant
from gear_rl.arena.ledger.problem import Call
from gear_rl.arena.ledger.problem import Problem as LedgerProblem
from gear_rl.arena.tiers import LEDGER_TIERS, TIERS


def self_test(tiers: Iterable[str] = tuple(TIERS)) -> dict[str, int]:
    """How many problems of each tier passed; raises AssertionError at the first broken promise.

    For every held-out problem: gold earns 1.0, its first steps alone are valid and earn 0.0, a planted fault
    earns 0.0 and departs from gold where it says. Random answers earn about one in a hundred, and none of as
    many training problems is held out.

    >>> self_test(["easy"])
    {'easy': 1024}
    """
    counts: dict[str, int] = {}
    for tier in tiers:
        rng = random.Random(0)
        hits = 0
        held_out: set[str] = set()
        for seed in chain.HELD_OUT:
            problem = chain.generate(seed, tier)
            gold, planted = chain.solve(problem), chain.plant(problem, seed)
            held_out.add(problem.text)
            _expect(
                chain.chain_reward([gold.trace, planted.completion], [gold.answer] * 2) == [1.0, 0.0],
                tier,
                seed,
            )
            prefixes = [gold.trace[:end] for end in range(0, len(gold.trace), 13)]  # a step is 13 characters
            _expect(all(_is_prefix(prefix, problem) for prefix in prefixes), tier, seed)
            _expect(not any(chain.chain_reward(prefixes, [gold.answer] * len(prefixes))), tier, seed)
            _expect(_is_prefix(planted.completion[: planted.char], problem), tier, seed)
            _expect(not _is_prefix(planted.completion[: planted.char + 2], problem), tier, seed)
            _expect(all(chain.render(problem, r, seed) for r in get_args(Reference)), tier, seed)
            hits += chain.correct(f"ans {rng.randrange(problem.modulus):02d}", gold.answer)
        # 1024 guesses at 1 in 100: thirty hits are six deviations away.
        _expect(hits <= 30, tier, -1)
        train = {
            chain.generate(seed, tier).text
            for seed in range(chain.FIRST_TRAIN_SEED, chain.FIRST_TRAIN_SEED + len(chain.HELD_OUT))
        }
        _expect(not train & held_out, tier, -1)
        counts[tier] = len(chain.HELD_OUT)
    return counts


def ledger_self_test(
    tiers: Iterable[str] = tuple(LEDGER_TIERS), num: int = len(ledger.HELD_OUT)
) -> dict[str, int]:
    """The same for the first `num` problems of the task "ledger", with a real database for every episode.

    For every held-out problem: gold earns 1.0, its first calls alone earn 0.0, planted faults of both kinds earn
    0.0 and leave gold at the turn they name. Random payments earn next to nothing, and none of as many training
    problems is held out.

    >>> ledger_self_test(["easy"], num=32)
    {'easy': 32}
    """
    counts: dict[str, int] = {}
    for tier in tiers:
        irreversible = LEDGER_TIERS[tier].irreversible
        rng = random.Random(0)
        hits = 0.0
        held_out: set[str] = set()
        for seed in ledger.HELD_OUT[:num]:
            problem = ledger.generate(seed, tier)
            held_out.add(problem.text)
            gold = ledger.calls(problem)
            whole = episode(problem, irreversible=irreversible)
            _expect((whole.reward, whole.errors) == (1.0, 0), tier, seed)
            env = environment(tier)()
            env.reset(seed=seed, tier=tier)
            for call in gold:
                _expect(env.get_reward() == 0.0, tier, seed)
                getattr(env, call.name)(**call.arguments)
            _expect(env.get_reward() == 1.0, tier, seed)
            for kind in ("relation", "argument"):
                planted = plant(problem, seed, kind)
                _expect(
                    planted.messages[: 2 * planted.turn] == whole.messages[: 2 * planted.turn], tier, seed
                )
                _expect(planted.messages[2 * planted.turn] != whole.messages[2 * planted.turn], tier, seed)
            hits += episode(problem, [_random_payment(problem, rng)]).reward
        # 1024 guesses at less than 1 in 2000: eight hits are ten deviations away.
        _expect(hits <= 8, tier, -1)
        seeds = range(ledger.FIRST_TRAIN_SEED, ledger.FIRST_TRAIN_SEED + num)
        _expect(not held_out & {ledger.generate(seed, tier).text for seed in seeds}, tier, -1)
        counts[tier] = num
    return counts


def _random_payment(problem: LedgerProblem, rng: random.Random) -> Call:
    source, target = rng.sample(sorted(problem.world.balances), 2)
    return Call("pay", {"source": source, "target": target, "amount": rng.randint(10, 99)})


def _expect(holds: bool, tier: str, seed: int) -> None:
    """Raise where a promise is broken; a plain `assert` would vanish under `python -O`."""
    if not holds:
        raise AssertionError(f"broken promise in tier {tier!r}, seed {seed}")


def _is_prefix(text: str, problem: Problem) -> bool:
    """Whether `text` can still become the right completion."""
    return chain.solve(problem).trace.startswith(text)
