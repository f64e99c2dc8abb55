"""The task "codebook": symbols to look up, each code a decision of its own, and the share that is right.

Pure Python: knows no model, no tokenizer and no trainer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena import habits
from gear_rl.arena.codebook.book import FILLER, HABITS, RIGHT, SYMBOLS
from gear_rl.arena.codebook.tiers import TIERS, Tier
from gear_rl.arena.task import (
    FIRST_TRAIN_SEED,
    HELD_OUT,
    TEMPLATE,
    Reference,
    fingerprint_of,
    is_held_out,
    seeds_of,
    texts_of,
)

LEAD = "codes"
"""The first word of prompts and completions."""
DOT = "."
"""In the prompt: one irrelevant word between decisions."""
EXACT = "all"
"""The first word of an answer of which every code must be right."""
ANSWER_PATTERN = r"([A-Z][aeio] [0-9]{2})(?![0-9])\s*\Z"
"""Where the last decision of a completion stands."""

_DECISION = re.compile(r"(?<![A-Za-z])([A-Z][aeio]) ([0-9]{2})(?![0-9])")


@dataclass(frozen=True, slots=True)
class Problem:
    """Symbols to look up, in order, and the irrelevant words that its solution has between them.

    >>> problem = Problem(("Ka", "Bo"), (("hm", "so"),))
    >>> problem.text, Problem(("Ka",), ()).text
    ('codes . . Ka Bo', 'codes Ka')
    """

    symbols: tuple[str, ...]
    filler: tuple[tuple[str, ...], ...]
    """The words after each symbol but the last."""
    exact: bool = False
    """Whether all codes must be right for a reward."""

    @property
    def text(self) -> str:
        """The prompt of the problem: a dot for each irrelevant word between two decisions, then the symbols."""
        dots = len(self.filler[0]) if self.filler else 0
        return " ".join([LEAD, *[DOT] * dots, *self.symbols])


@dataclass(frozen=True, slots=True)
class Solution:
    """A right completion of a problem, and what it is judged by.

    >>> solve(Problem(("Ka", "Bo"), (("hm",),)))
    Solution(trace='codes Ka 17 hm Bo 08', answer='Ka 17 Bo 08')
    """

    trace: str
    answer: str


@dataclass(frozen=True, slots=True)
class Planted:
    """A completion with exactly one wrong code."""

    completion: str
    decision: int
    """Whose code is wrong, from 0."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that a completion takes: which of the answer's, where its code stands, and whether it is right.

    >>> list(decisions("codes Bo 08 Ka 11", "Ka 17 Bo 08"))
    [Decision(index=1, start=9, end=11, right=True), Decision(index=0, start=15, end=17, right=False)]
    """

    index: int
    start: int
    end: int
    right: bool


def generate(seed: int, tier: str | Tier = "default") -> Problem:
    """The problem of a seed; seeds in `HELD_OUT` never share a problem with any other seed.

    >>> generate(0, "easy") == generate(0, "easy"), generate(0, "easy").text
    (True, 'codes Mo Fa De Ni')
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier
    rng = random.Random(seed)
    while True:
        symbols = tuple(rng.sample(SYMBOLS, settings.symbols))
        problem = Problem(symbols, draw_filler(settings.symbols, settings.filler, rng), settings.exact)
        if is_held_out(problem.text) == (seed in HELD_OUT):
            return problem


def draw_filler(symbols: int, words: int, rng: random.Random) -> tuple[tuple[str, ...], ...]:
    """So many irrelevant words between one decision and the next, each as likely; none after the last.

    >>> [len(gap) for gap in draw_filler(3, 2, random.Random(0))], draw_filler(3, 0, random.Random(0))
    ([2, 2], ((), ()))
    """
    return tuple(tuple(rng.choices(FILLER, k=words)) for _ in range(symbols - 1))


def write(problem: Problem, codes: Sequence[str]) -> str:
    """The completion that gives these codes, right or wrong, with the problem's irrelevant words.

    >>> write(Problem(("Ka", "Bo"), (("hm",),)), ("12", "34"))
    'codes Ka 12 hm Bo 34'
    """
    words = [LEAD]
    for symbol, code, gap in zip(problem.symbols, codes, (*problem.filler, ()), strict=True):
        words += [symbol, code, *gap]
    return " ".join(words)


def solve(problem: Problem) -> Solution:
    """A right completion of a problem (the irrelevant words could be others) and its answer.

    >>> solve(Problem(("Ka", "Bo"), ((),), exact=True)).answer
    'all Ka 17 Bo 08'
    """
    codes = [RIGHT[symbol] for symbol in problem.symbols]
    pairs = " ".join(f"{symbol} {code}" for symbol, code in zip(problem.symbols, codes, strict=True))
    return Solution(write(problem, codes), f"{EXACT} {pairs}" if problem.exact else pairs)


def mistake(symbol: str, rng: random.Random) -> str:
    """A wrong code for a symbol, drawn as the student of the warm start errs.

    >>> mistake("Ka", random.Random(0)) == RIGHT["Ka"]
    False
    """
    return habits.mistake(HABITS[symbol], rng)


def plant(problem: Problem, seed: int) -> Planted:
    """The right completion but for one decision, drawn with `seed`.

    >>> plant(Problem(("Ka", "Bo"), (("hm",),)), seed=0)
    Planted(completion='codes Ka 17 hm Bo 29', decision=1)
    """
    rng = random.Random(seed)
    decision = rng.randrange(len(problem.symbols))
    codes = [RIGHT[symbol] for symbol in problem.symbols]
    codes[decision] = mistake(problem.symbols[decision], rng)
    return Planted(write(problem, codes), decision)


def privileged_context(problem: Problem, reference: Reference = "trace", seed: int = 0) -> str | None:
    """What only the teacher sees; None for "none". "answer" is the right codes without their symbols.

    "shuffled" is the solution of another problem of the same shape, none of whose symbols is this one's: it
    informs nobody, so no method may gain from it.

    >>> problem = Problem(("Ka", "Bo"), (("hm",),))
    >>> [privileged_context(problem, reference) for reference in ("none", "trace", "answer")]
    [None, 'codes Ka 17 hm Bo 08', 'codes 17 08']
    """
    match reference:
        case "none":
            return None
        case "trace":
            return solve(problem).trace
        case "answer":
            return " ".join([LEAD, *(RIGHT[symbol] for symbol in problem.symbols)])
        case "shuffled":
            rng = random.Random(seed)
            others = [symbol for symbol in SYMBOLS if symbol not in problem.symbols]
            symbols = tuple(rng.sample(others, len(problem.symbols)))
            words = len(problem.filler[0]) if problem.filler else 0
            return solve(Problem(symbols, draw_filler(len(symbols), words, rng))).trace


def render(problem: Problem, context: str | None = None) -> list[dict[str, str]]:
    """The chat messages of a prompt, with the privileged context in the user message if there is one.

    >>> render(Problem(("Ka",), ()), "codes Ka 17")
    [{'role': 'user', 'content': 'codes Ka\\nref codes Ka 17'}]
    """
    if context is None:
        return [{"role": "user", "content": problem.text}]
    return [{"role": "user", "content": TEMPLATE.format(prompt=problem.text, privileged_context=context)}]


def rows(
    tier: str | Tier = "default",
    *,
    num: int,
    reference: Reference = "trace",
    first_seed: int = FIRST_TRAIN_SEED,
) -> list[dict[str, Any]]:
    """Data set rows of consecutive seeds: prompt, privileged_context and answer. `first_seed=0` is held out.

    >>> rows("exact", num=1, first_seed=0)[0]["answer"]
    'all Mo 64 Fa 83 De 63 Ni 80'
    """
    seeds = seeds_of(num, first_seed)
    problems = [generate(seed, tier) for seed in seeds]
    return [
        {
            "prompt": render(problem),
            "privileged_context": privileged_context(problem, reference, seed),
            "answer": solve(problem).answer,
        }
        for seed, problem in zip(seeds, problems, strict=True)
    ]


def wanted(answer: str) -> dict[str, str]:
    """The right code of each symbol that an answer names, in order.

    >>> wanted("all Ka 17 Bo 08")
    {'Ka': '17', 'Bo': '08'}
    """
    return dict(_DECISION.findall(answer))


def decisions(completion: str, answer: str) -> Iterator[Decision]:
    """The decisions that a completion takes, in the order in which it takes them.

    A decision is a symbol of the answer with two digits right after it. What is written first counts: a second
    code for the same symbol is no decision, nor is a symbol that was not to be looked up. The order is free.

    >>> [decision.right for decision in decisions("codes Ka 11 Ka 17 Mo 22", "Ka 17 Bo 08")]
    [False]
    """
    codes = wanted(answer)
    index = {symbol: i for i, symbol in enumerate(codes)}
    for match in _DECISION.finditer(completion):
        if match[1] in index:
            yield Decision(index.pop(match[1]), *match.span(2), right=match[2] == codes[match[1]])


def share_right(completion: str, answer: str) -> float:
    """The share of the answer's codes that the completion gives; a code that is not given is wrong.

    >>> share_right("codes Ka 17 Bo 28", "Ka 17 Bo 08"), share_right("", "Ka 17")
    (0.5, 0.0)
    """
    return sum(decision.right for decision in decisions(completion, answer)) / len(wanted(answer))


def codebook_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """The share of right codes, or whether all are where the answer begins with "all": a TRL reward function.

    Completions are strings or lists of chat messages.

    >>> codebook_reward(["codes Ka 17 Bo 28"] * 2, answer=["Ka 17 Bo 08", "all Ka 17 Bo 08"])
    [0.5, 0.0]
    """
    shares = [share_right(*pair) for pair in zip(texts_of(completions), answer, strict=True)]
    exact = [gold.startswith(EXACT) for gold in answer]
    return [float(share == 1) if all_ else share for share, all_ in zip(shares, exact, strict=True)]


def exact_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where every code is right, else 0.0, in every tier.

    A second reward, for methods that treat several of them apart.

    >>> exact_reward(["codes Ka 17", "codes Ka 95"], answer=["Ka 17", "Ka 17"])
    [1.0, 0.0]
    """
    texts = texts_of(completions)
    return [float(share_right(*pair) == 1) for pair in zip(texts, answer, strict=True)]


def fingerprint(tier: str | Tier = "default", num: int = len(HELD_OUT)) -> str:
    """The sha256 of the first held-out problems and answers: two reports with the same one are comparable.

    >>> fingerprint("easy", 8)[:8]
    '0014d880'
    """
    problems = (generate(seed, tier) for seed in HELD_OUT[:num])
    return fingerprint_of((problem.text, solve(problem).answer) for problem in problems)
