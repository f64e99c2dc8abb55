"""Codes to know by heart, and a student that knows each to its own degree: tables made from names."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import StatisticsError, correlation, fmean
from typing import Any

from gear_rl.arena.task import FactTable

CODES: tuple[str, ...] = tuple(f"{n:02d}" for n in range(100))
"""What a code can be."""
KNOWN = (0.15, 0.9)
"""The smallest and the largest share of right codes that a name has in the student's demonstrations."""
FAVOURITE_SHARE = 0.8
"""The part of a name's mistakes that are one and the same code: on top wherever less than 4/9 is right."""

Habit = dict[str, float]
"""The probability of each code that a student writes for one name, the right one first."""


def right_codes(names: Sequence[str], key: str) -> dict[str, str]:
    """A code for each name, no two alike, drawn by `key`.

    >>> right_codes(["Ba", "Be"], "codes of the codebook") == right_codes(["Ba", "Be"], "codes of the codebook")
    True
    """
    return dict(zip(names, random.Random(key).sample(CODES, len(names)), strict=True))


def habits_of(right: Mapping[str, str], key: str) -> dict[str, Habit]:
    """Shares of right codes at equal distances, in no order; mistakes go to one code mostly, and to two more.

    >>> [round(share, 3) for share in habits_of({"Ba": "17", "Be": "08"}, "key")["Ba"].values()]
    [0.15, 0.68, 0.085, 0.085]
    """
    rng = random.Random(key)
    fewest, most = KNOWN
    step = (most - fewest) / (len(right) - 1)
    shares = [fewest + step * i for i in range(len(right))]
    rng.shuffle(shares)
    rest = (1 - FAVOURITE_SHARE) / 2
    habits: dict[str, Habit] = {}
    for (name, code), share in zip(right.items(), shares, strict=True):
        wrong = rng.sample([other for other in CODES if other != code], 3)
        parts = zip(wrong, (FAVOURITE_SHARE, rest, rest), strict=True)
        habits[name] = {code: share, **{other: (1 - share) * part for other, part in parts}}
    return habits


def drawn(habit: Habit, rng: random.Random) -> str:
    """A code as the student gives it.

    >>> drawn({"17": 1.0, "08": 0.0}, random.Random(0))
    '17'
    """
    return rng.choices([*habit], [*habit.values()])[0]


def mistake(habit: Habit, rng: random.Random) -> str:
    """A wrong code, drawn as the student errs; the habit's first code is the right one.

    >>> mistake({"17": 0.9, "29": 0.1}, random.Random(0))
    '29'
    """
    return drawn(dict([*habit.items()][1:]), rng)


def learned(
    habits: Mapping[str, Habit], actual: Mapping[str, float], tops: Mapping[str, float]
) -> dict[str, float]:
    """How near a model's probability of each name's right code, `actual`, is to the table that it was taught.

    `correlation` and `mean_gap` (of absolute differences) are those between wanted and actual; `lowest` and
    `highest` are of the actual ones; `wrong_on_top` and `wanted_wrong_on_top` the share of names whose likeliest
    code is wrong, `tops` being how often it is right. The correlation is NaN where all are alike, or where only
    one name occurs.

    >>> facts = learned({"Ba": {"17": 0.2, "08": 0.8}}, actual={"Ba": 0.3}, tops={"Ba": 0.0})
    >>> facts["symbols"], round(facts["mean_gap"], 3), facts["wrong_on_top"], facts["wanted_wrong_on_top"]
    (1, 0.1, 1.0, 1.0)
    """
    wanted = {name: next(iter(habits[name].values())) for name in actual}
    try:
        related = correlation([*wanted.values()], [*actual.values()])
    except StatisticsError:
        related = float("nan")
    return {
        "symbols": len(actual),
        "correlation": related,
        "mean_gap": fmean(abs(wanted[name] - value) for name, value in actual.items()),
        "lowest": min(actual.values()),
        "highest": max(actual.values()),
        "wrong_on_top": fmean(share < 0.5 for share in tops.values()),
        "wanted_wrong_on_top": fmean(max(habits[name].values()) != value for name, value in wanted.items()),
    }


def habits_table(task: str, facts: Mapping[str, Any]) -> FactTable:
    """What `learned` gave, the same in each tier's facts, for a person."""
    habits = next(iter(facts.values()))["habits"]
    return FactTable(
        title=f"{task}: the probability of each symbol's right code, as taught and as learned",
        columns=tuple(name.replace("_", " ") for name in habits),
        rows=[tuple(f"{value:.3f}".removesuffix(".000") for value in habits.values())],
    )
