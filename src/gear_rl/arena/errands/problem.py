"""The task "errands": things to send one after the other, each with a code of its own that has to be known.

Requests do not depend on each other, the answers of the tools say nothing, and the share that is settled right is
paid. Pure Python: knows no model, no tokenizer and no trainer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.calls import Call, call_text
from gear_rl.arena.errands.tiers import TIERS, Tier
from gear_rl.arena.habits import CODES, Habit, habits_of, mistake, right_codes
from gear_rl.arena.task import FIRST_TRAIN_SEED, HELD_OUT, Reference, fingerprint_of, is_held_out, seeds_of

ANSWER_PATTERN = r'"name": "send", "arguments": (\{[^}]*\})'
"""What a rollout's answer is: an item and its code. The last text is always the same."""
ITEMS = (
    *("lamp", "drum", "kite", "boat", "bell", "coin", "vase", "harp"),
    *("sled", "tent", "clock", "globe", "piano", "mask", "wand", "flute"),
    *("crown", "wheel", "brush", "candle", "ladder", "mirror", "basket", "helmet"),
    *("ribbon", "carpet", "anchor", "trumpet", "violin", "button", "bottle", "blanket"),
    *("saddle", "compass", "lantern", "hammer", "needle", "pillow", "barrel", "feather"),
    *("kettle", "shovel", "whistle", "puppet", "marble", "locket", "goblet", "sickle"),
)
RIGHT: dict[str, str] = right_codes(ITEMS, "codes of the errands")
"""The code of each item; no two share one."""
HABITS: dict[str, Habit] = habits_of(RIGHT, "habits of the agent")
"""What the student of the warm start is taught to give for each item where it sees no reference."""
SEND, WAIT = "send", "wait"
"""The tool that settles a request, and the one that is of no use."""
DONE = "done"
"""What the assistant says when all requests are settled."""
Made = Sequence[tuple[str, str] | None]
"""Calls in their order: item and code of one that sends, as the model wrote them; None for one that waits."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be sent.

    >>> Problem(("lamp", "kite")).text
    'send lamp kite'
    """

    items: tuple[str, ...]

    @property
    def text(self) -> str:
        """The prompt of the problem."""
        return " ".join([SEND, *self.items])


def generate(seed: int, tier: str | Tier = "default") -> Problem:
    """The problem of a seed; seeds in `HELD_OUT` never share a problem with any other seed.

    >>> generate(0, "easy") == generate(0, "easy"), len(generate(0, "easy").items)
    (True, 3)
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier
    rng = random.Random(seed)
    while True:
        problem = Problem(tuple(rng.sample(ITEMS, settings.requests)))
        if is_held_out(problem.text) == (seed in HELD_OUT):
            return problem


def sends(problem: Problem, codes: Sequence[str] | None = None) -> list[Call]:
    """The calls that send each item with these codes, by default with the right ones.

    >>> sends(Problem(("lamp",)), ["17"])[0].arguments
    {'item': 'lamp', 'code': '17'}
    """
    given = [RIGHT[item] for item in problem.items] if codes is None else codes
    pairs = zip(problem.items, given, strict=True)
    return [Call(SEND, {"item": item, "code": code}) for item, code in pairs]


def decisions(problem: Problem, made: Made) -> dict[int, int]:
    """Which calls count, by their number, and the request that each settles.

    The first call for an item counts, right or wrong. One for what was not requested, or with what is no code,
    settles nothing, nor does any after the tier's number of calls.

    >>> lamp_and_kite = Problem(("lamp", "kite"))
    >>> decisions(lamp_and_kite, [None, ("kite", "17"), ("kite", "08"), ("lamp", "9"), ("lamp", "99")])
    {1: 1}
    """
    taken: dict[int, int] = {}
    for number, call in enumerate(made[: Tier(requests=len(problem.items)).calls]):
        if call is not None and call[0] in problem.items and call[1] in CODES:
            request = problem.items.index(call[0])
            if request not in taken.values():
                taken[number] = request
    return taken


def rights(problem: Problem, made: Made) -> list[bool]:
    """For each call whether it settles a request right.

    >>> rights(Problem(("lamp", "kite")), [None, ("lamp", RIGHT["lamp"]), ("lamp", RIGHT["lamp"])])
    [False, True, False]
    """
    gold = [(item, RIGHT[item]) for item in problem.items]
    taken = decisions(problem, made)
    return [number in taken and call == gold[taken[number]] for number, call in enumerate(made)]


def plant(problem: Problem, seed: int) -> tuple[list[Call], int]:
    """The right calls but for one code, drawn with `seed` as the student errs; and which call that is.

    >>> calls, wrong = plant(Problem(("lamp", "kite")), seed=0)
    >>> [call == right for call, right in zip(calls, sends(Problem(("lamp", "kite"))))], wrong
    ([True, False], 1)
    """
    rng = random.Random(seed)
    wrong = rng.randrange(len(problem.items))
    codes = [RIGHT[item] for item in problem.items]
    codes[wrong] = mistake(HABITS[problem.items[wrong]], rng)
    return sends(problem, codes), wrong


def privileged_context(problem: Problem, reference: Reference = "trace", seed: int = 0) -> str | None:
    """What only the teacher sees; None for "none". "answer" is the right codes without their items.

    "shuffled" is the right calls of another problem of the same size, none of whose items is this one's: it
    informs nobody, so no method may gain from it.

    >>> privileged_context(Problem(("lamp",)), "answer") == RIGHT["lamp"]
    True
    >>> privileged_context(Problem(("lamp",))).splitlines()[0]
    '<tool_call>'
    """
    match reference:
        case "none":
            return None
        case "trace":
            return call_text(sends(problem))
        case "answer":
            return " ".join(RIGHT[item] for item in problem.items)
        case "shuffled":
            others = [item for item in ITEMS if item not in problem.items]
            items = random.Random(seed).sample(others, len(problem.items))
            return call_text(sends(Problem(tuple(items))))


def rows(
    tier: str = "default",
    *,
    num: int,
    reference: Reference = "trace",
    first_seed: int = FIRST_TRAIN_SEED,
) -> list[dict[str, Any]]:
    """Data set rows of consecutive seeds: prompt, seed, tier and reference. `first_seed=0` is held out.

    A row holds no privileged context: the environment makes reward and context again from the seed.
    Raises ValueError where held-out problems and training problems would mix.

    >>> sorted(rows("easy", num=1)[0])
    ['prompt', 'reference', 'seed', 'tier']
    """
    return [
        {
            "prompt": [{"role": "user", "content": generate(seed, tier).text}],
            "seed": seed,
            "tier": tier,
            "reference": reference,
        }
        for seed in seeds_of(num, first_seed)
    ]


def fingerprint(tier: str = "default", num: int = len(HELD_OUT)) -> str:
    """The sha256 of the first held-out problems and right calls: reports with the same one are comparable."""
    problems = (generate(seed, tier) for seed in HELD_OUT[:num])
    return fingerprint_of((problem.text, call_text(sends(problem))) for problem in problems)
