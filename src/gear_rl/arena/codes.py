"""Codes that a student knows with different probabilities: tables made from names."""

import random
from collections.abc import Mapping, Sequence

CODES: tuple[str, ...] = tuple(f"{n:02d}" for n in range(100))
"""All codes."""
Belief = dict[str, float]
"""The probability of each code that a student writes for one name, the right one first."""


def right_codes(names: Sequence[str], key: str) -> dict[str, str]:
    """A code for each name, all different, drawn by `key`.

    >>> right_codes(["Ba", "Be"], "codes of the codebook") == right_codes(["Ba", "Be"], "codes of the codebook")
    True
    """
    return dict(zip(names, random.Random(key).sample(CODES, len(names)), strict=True))


def beliefs_of(right: Mapping[str, str], key: str) -> dict[str, Belief]:
    """The shipped student's probabilities of codes for each name; of the right one from 0.15 to 0.9, shuffled.

    0.8 of its mistakes are one code, which is the likeliest if the right one has less than 4/9.

    >>> [round(share, 3) for share in beliefs_of({"Ba": "17", "Be": "08"}, "key")["Ba"].values()]
    [0.15, 0.68, 0.085, 0.085]
    """
    rng = random.Random(key)
    step = (0.9 - 0.15) / (len(right) - 1)
    shares = [0.15 + step * i for i in range(len(right))]
    rng.shuffle(shares)
    rest = (1 - 0.8) / 2
    beliefs: dict[str, Belief] = {}
    for (name, code), share in zip(right.items(), shares, strict=True):
        wrong = rng.sample([other for other in CODES if other != code], 3)
        parts = zip(wrong, (0.8, rest, rest), strict=True)
        beliefs[name] = {code: share, **{other: (1 - share) * part for other, part in parts}}
    return beliefs


def draw_code(belief: Belief, rng: random.Random) -> str:
    """A code with the student's probabilities.

    >>> draw_code({"17": 1.0, "08": 0.0}, random.Random(0))
    '17'
    """
    return rng.choices([*belief], [*belief.values()])[0]


def with_mistake(beliefs: Sequence[Belief], seed: int) -> list[str]:
    """The right codes but for one, drawn with the student's probabilities of wrong ones.

    >>> with_mistake([{"17": 0.9, "29": 0.1}], seed=0)
    ['29']
    """
    rng = random.Random(seed)
    codes, place = [next(iter(belief)) for belief in beliefs], rng.randrange(len(beliefs))
    codes[place] = draw_code(dict([*beliefs[place].items()][1:]), rng)
    return codes
