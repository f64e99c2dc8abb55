"""Word problems in a few steps with worked solutions, made from templates and a seed.

``dataset: benchmarks.word_problems:rows``, ``:bare`` or ``:together``, and
``reward: benchmarks.word_problems:reward``.
"""

import random
import re
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

from gear_rl.data.rewards.text import Completion, final_texts
from gear_rl.data.rows import checksum

SEEDS = {"train": 1_000_003, "test": 2_000_003}
TEST_SHARE = 0.25
"""Share of all problems, by checksum, that only ``test`` has: two seeds may draw the same."""
_NAMES = ("Anna", "Ben", "Clara", "David", "Eva", "Finn", "Grace", "Hugo")
_THINGS = ("apples", "books", "coins", "pens", "shells", "stamps")
_ANSWER = re.compile(r"answer is:?\s*\$?(-?\d+(?:,\d{3})*(?:\.\d+)?)", re.IGNORECASE)

_Problem = tuple[str, tuple[tuple[int, str, int], ...]]
"""The text, and its steps: first number, sign, second number."""


def rows(
    split: str = "train", num: int = 4096, *, template: str | None = None, example: bool = True
) -> list[dict[str, Any]]:
    """Rows with ``prompt``, ``solution`` (the steps), ``answer`` and ``template``; prompts are distinct.

    ``template`` is one of ``changes``, ``prices`` and ``together``; without it they take turns. With ``example``
    a prompt begins with one that is solved. The same split gives the same rows.

    >>> row = rows(num=1)[0]
    >>> row["solution"]
    '2 * 2 = 4. 6 * 9 = 54. 4 + 54 = 58. The answer is 58.'
    >>> rows(num=1, template="prices", example=False)[0]["prompt"][:33]
    'Finn buys 6 shells for 4 dollars '
    """
    rng, made = random.Random(SEEDS[split]), dict[str, dict[str, Any]]()
    for name in cycle([template] if template else _TEMPLATES):
        if len(made) == num:
            break
        make, solved = _TEMPLATES[name]
        text, steps = make(rng)
        if (checksum(text) < TEST_SHARE) == (split == "test"):
            prompt = f"{solved}\n\nQuestion: {text}\nAnswer:" if example else text
            made.setdefault(text, {"prompt": prompt, **_worked(steps), "template": name})
    return list(made.values())


bare, together = partial(rows, example=False), partial(rows, template="together")


def reward(completions: Sequence[Completion], answer: Sequence[Any], **columns: Any) -> list[float]:
    """1 where the last "The answer is N" of a completion is the row's answer; the signature of a TRL reward.

    >>> reward(["2 + 2 = 4. The answer is 4.", "It is 4."], answer=["4", "4"])
    [1.0, 0.0]
    """
    found = [_ANSWER.findall(text) for text in final_texts(completions, columns)]
    return [
        float(bool(own) and float(own[-1].replace(",", "")) == float(right))
        for own, right in zip(found, answer, strict=True)
    ]


def _worked(steps: Sequence[tuple[int, str, int]]) -> dict[str, str]:
    result, written = 0, ""
    for first, sign, second in steps:
        result = {"+": first + second, "-": first - second, "*": first * second}[sign]
        written += f"{first} {sign} {second} = {result}. "
    return {"solution": f"{written}The answer is {result}.", "answer": str(result)}


def _changes(rng: random.Random) -> _Problem:
    """Somebody gets some and gives some away."""
    who, what, has = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(12, 40)
    text, steps = f"{who} has {has} {what}.", list[tuple[int, str, int]]()
    for _ in range(2):
        sign, other = rng.choice("+-" if has > 3 else "+"), rng.choice([n for n in _NAMES if n != who])
        count = rng.randint(3, 20 if sign == "+" else min(20, has - 1))
        done = f"gets {count} more from" if sign == "+" else f"gives {count} to"
        text += f" {who} {done} {other}."
        steps.append((has, sign, count))
        has = has + count if sign == "+" else has - count
    return f"{text} How many {what} does {who} have now?", tuple(steps)


def _prices(rng: random.Random) -> _Problem:
    """Some of one kind and some of another, at two prices."""
    who = rng.choice(_NAMES)
    (one, two), (a, b) = rng.sample(_THINGS, 2), (rng.randint(2, 9), rng.randint(2, 9))
    m, n = rng.randint(2, 6), rng.randint(2, 6)
    text = (
        f"{who} buys {m} {one} for {a} dollars each and {n} {two} for {b} dollars each. "
        "How many dollars is that together?"
    )
    return text, ((m, "*", a), (n, "*", b), (m * a, "+", n * b))


def _together(rng: random.Random) -> _Problem:
    """One has more than another, and a third brings some."""
    (who, other, third), what = rng.sample(_NAMES, 3), rng.choice(_THINGS)
    a, b, c = rng.randint(5, 40), rng.randint(3, 30), rng.randint(3, 30)
    text = (
        f"{who} has {a} {what}. {other} has {b} more than {who}. {third} brings {c}. "
        f"How many {what} do {other} and {third} have together?"
    )
    return text, ((a, "+", b), (a + b, "+", c))


_TEMPLATES = {
    "changes": (
        _changes,
        "Question: Tom has 15 cards. Tom gets 8 more from Sue. Tom gives 4 to Kim. How many cards does Tom have "
        "now?\nAnswer: 15 + 8 = 23. 23 - 4 = 19. The answer is 19.",
    ),
    "prices": (
        _prices,
        "Question: Tom buys 3 cards for 5 dollars each and 2 maps for 7 dollars each. How many dollars is that "
        "together?\nAnswer: 3 * 5 = 15. 2 * 7 = 14. 15 + 14 = 29. The answer is 29.",
    ),
    "together": (
        _together,
        "Question: Tom has 15 cards. Sue has 8 more than Tom. Kim brings 4. How many cards do Sue and Kim have "
        "together?\nAnswer: 15 + 8 = 23. 23 + 4 = 27. The answer is 27.",
    ),
}
"""Each with an example, which is part of the prompt's one message, before a teacher's context."""
