"""Whether the task keeps its promises: exhaustive over the held-out problems, in a second. Pure Python."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

from gear_rl.arena import chain
from gear_rl.arena.chain import Problem, Reference
from gear_rl.arena.tiers import TIERS


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


def _expect(holds: bool, tier: str, seed: int) -> None:
    """Raise where a promise is broken; a plain `assert` would vanish under `python -O`."""
    if not holds:
        raise AssertionError(f"chain: broken promise in tier {tier!r}, seed {seed}")


def _is_prefix(text: str, problem: Problem) -> bool:
    """Whether `text` can still become the right completion."""
    return chain.solve(problem).trace.startswith(text)
