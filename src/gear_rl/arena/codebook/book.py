"""The codebook itself: every symbol's code, and how often the student of the warm start knows it. Tables only."""

from __future__ import annotations

import random

CODES: tuple[str, ...] = tuple(f"{n:02d}" for n in range(100))
"""What a code can be."""
SYMBOLS: tuple[str, ...] = tuple(first + second for first in "BCDFGHJKLMNPRSTV" for second in "aeio")
"""What can be looked up: 64, so that 32 of them leave as many for another problem's reference."""
FILLER: tuple[str, ...] = ("also", "and", "hm", "next", "now", "so", "then", "well")
"""Words between decisions, which nothing judges."""
KNOWN = (0.15, 0.9)
"""The smallest and the largest share of right codes that a symbol has in the student's demonstrations."""
FAVOURITE_SHARE = 0.8
"""The part of a symbol's mistakes that are one and the same code: on top wherever less than 4/9 is right."""

Habit = dict[str, float]
"""The probability of each code that a student writes for one symbol, the right one first."""


def _right_codes() -> dict[str, str]:
    return dict(zip(SYMBOLS, random.Random("codes of the codebook").sample(CODES, len(SYMBOLS)), strict=True))


def _habits() -> dict[str, Habit]:
    """Shares of right codes at equal distances, in no order; mistakes go to one code mostly, and to two more."""
    rng = random.Random("habits of the student")
    fewest, most = KNOWN
    step = (most - fewest) / (len(SYMBOLS) - 1)
    shares = [fewest + step * i for i in range(len(SYMBOLS))]
    rng.shuffle(shares)
    rest = (1 - FAVOURITE_SHARE) / 2
    habits: dict[str, Habit] = {}
    for symbol, share in zip(SYMBOLS, shares, strict=True):
        wrong = rng.sample([code for code in CODES if code != RIGHT[symbol]], 3)
        parts = zip(wrong, (FAVOURITE_SHARE, rest, rest), strict=True)
        habits[symbol] = {RIGHT[symbol]: share, **{code: (1 - share) * part for code, part in parts}}
    return habits


RIGHT: dict[str, str] = _right_codes()
"""The code of each symbol; no two share one."""
HABITS: dict[str, Habit] = _habits()
"""What the student of the warm start is taught to write for each symbol where it sees no reference."""
