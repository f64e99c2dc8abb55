"""Problems of the task "codebook": symbols to look up, each code a decision, and the share that is right.

Pure Python: knows no model, no tokenizer and no trainer.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gear_rl.arena.codes import Belief, beliefs_of, right_codes, with_mistake
from gear_rl.arena.task import Completion, Reference, problem_of, texts_of

SYMBOLS: tuple[str, ...] = tuple(first + second for first in "BCDFGHJKLMNPRSTV" for second in "aeio")
"""All symbols: 64, so that 32 of them leave as many for another problem's reference."""
RIGHT: dict[str, str] = right_codes(SYMBOLS, "codes of the codebook")
"""The code of each symbol; no two share one."""
BELIEFS: dict[str, Belief] = beliefs_of(RIGHT, "habits of the student")
"""The shipped student's probabilities of codes for each symbol, without a reference."""
FILLER: tuple[str, ...] = ("also", "and", "hm", "next", "now", "so", "then", "well")
"""Irrelevant words between decisions, which no reward reads."""
LEAD = "codes"
"""The first word of prompts and completions."""
DOT = "."
"""In the prompt: one irrelevant word between decisions."""
EXACT = "all"
"""The first word of an answer of which every code must be right."""
ANSWER_PATTERN = r"([A-Z][aeio] [0-9]{2})(?![0-9])\s*\Z"
"""The last decision of a completion."""

_DECISION = re.compile(r"(?<![A-Za-z])([A-Z][aeio]) ([0-9]{2})(?![0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How many decisions a completion has, how many words between them, and the kind of reward."""

    symbols: int
    """Decisions per completion: 32 at most, since as many must be left for another problem's reference."""
    filler: int = 0
    """Irrelevant words between two decisions, any of ``FILLER``."""
    exact: bool = False
    """Whether all codes must be right; else the reward is the share of right ones."""


TIERS: dict[str, Tier] = {
    "easy": Tier(symbols=4),
    "default": Tier(symbols=12),
    "hard": Tier(symbols=24),
    "words": Tier(symbols=20, filler=2),
    "exact": Tier(symbols=4, exact=True),
    **{f"k{symbols}": Tier(symbols=symbols) for symbols in (8, 16, 32)},
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Symbols to look up, in order, and the irrelevant words that its solution has between them.

    >>> problem = Problem(("Ka", "Bo"), (("hm",),))
    >>> problem.text, problem.solve(), problem.answer
    ('codes . Ka Bo', ('codes Ka 17 hm Bo 08',), 'Ka 17 Bo 08')
    """

    symbols: tuple[str, ...]
    filler: tuple[tuple[str, ...], ...]
    """The words after each symbol but the last."""
    exact: bool = False
    """Whether all codes must be right for a reward."""

    @property
    def words(self) -> int:
        """Irrelevant words between two decisions."""
        return len(self.filler[0]) if self.filler else 0

    @property
    def text(self) -> str:
        """The prompt: a dot for each irrelevant word between two decisions, then the symbols."""
        return " ".join([LEAD, *[DOT] * self.words, *self.symbols])

    @property
    def answer(self) -> str:
        """Symbols and their codes, after "all" where every code must be right."""
        pairs = [word for symbol in self.symbols for word in (symbol, RIGHT[symbol])]
        return " ".join([EXACT, *pairs] if self.exact else pairs)

    def write(self, codes: Sequence[str]) -> str:
        """The completion that gives these codes, right or wrong, with the problem's irrelevant words.

        >>> Problem(("Ka", "Bo"), (("hm",),)).write(("12", "34"))
        'codes Ka 12 hm Bo 34'
        """
        words = [LEAD]
        for symbol, code, gap in zip(self.symbols, codes, (*self.filler, ()), strict=True):
            words += [symbol, code, *gap]
        return " ".join(words)

    def solve(self) -> Completion:
        """A right completion; the irrelevant words could be others."""
        return (self.write([RIGHT[symbol] for symbol in self.symbols]),)

    def plant(self, seed: int) -> Completion:
        """The right completion but for one code, drawn as the student errs.

        >>> Problem(("Ka", "Bo"), (("hm",),)).plant(seed=0)
        ('codes Ka 17 hm Bo 29',)
        """
        return (self.write(with_mistake([BELIEFS[symbol] for symbol in self.symbols], seed)),)

    def reference(self, kind: Reference, seed: int = 0) -> str | None:
        """What only the teacher sees; "answer" is the right codes without their symbols.

        "shuffled" is the solution of a problem of the same shape with other symbols, so no method may gain from
        it.

        >>> [Problem(("Ka", "Bo"), (("hm",),)).reference(kind) for kind in ("none", "trace", "answer")]
        [None, 'codes Ka 17 hm Bo 08', 'codes 17 08']
        """
        match kind:
            case "none":
                return None
            case "trace":
                return self.solve()[0]
            case "answer":
                return " ".join([LEAD, *(RIGHT[symbol] for symbol in self.symbols)])
            case "shuffled":
                rng = random.Random(seed)
                others = [symbol for symbol in SYMBOLS if symbol not in self.symbols]
                symbols = tuple(rng.sample(others, len(self.symbols)))
                return Problem(symbols, draw_filler(len(symbols), self.words, rng)).solve()[0]


def draw_filler(symbols: int, words: int, rng: random.Random) -> tuple[tuple[str, ...], ...]:
    """``words`` random irrelevant words between one decision and the next; none after the last.

    >>> [len(gap) for gap in draw_filler(3, 2, random.Random(0))], draw_filler(3, 0, random.Random(0))
    ([2, 2], ((), ()))
    """
    return tuple(tuple(rng.choices(FILLER, k=words)) for _ in range(symbols - 1))


def generate(seed: int, tier: str | Tier = "default") -> Problem:
    """The problem of a seed.

    >>> generate(0, "easy").text
    'codes Mo Fa De Ni'
    """
    settings = TIERS[tier] if isinstance(tier, str) else tier

    def draw(rng: random.Random) -> Problem:
        symbols = tuple(rng.sample(SYMBOLS, settings.symbols))
        return Problem(symbols, draw_filler(settings.symbols, settings.filler, rng), settings.exact)

    return problem_of(seed, draw)


def codes_in(answer: str) -> dict[str, str]:
    """The right code of each symbol that an answer names, in order.

    >>> codes_in("all Ka 17 Bo 08")
    {'Ka': '17', 'Bo': '08'}
    """
    return dict(_DECISION.findall(answer))


def decisions(completion: str, answer: str) -> Iterator[tuple[int, int, int, bool]]:
    """The decisions that a completion takes, in the order of the completion.

    A decision is a symbol of the answer with two digits right after it. Only the first code for a symbol counts.
    The order is free.

    >>> list(decisions("codes Ka 11 Ka 17 Mo 22", "Ka 17 Bo 08"))
    [(0, 9, 11, False)]
    """
    codes = codes_in(answer)
    index = {symbol: i for i, symbol in enumerate(codes)}
    for match in _DECISION.finditer(completion):
        if match[1] in index:
            yield index.pop(match[1]), *match.span(2), match[2] == codes[match[1]]


def share_right(completion: str, answer: str) -> float:
    """The share of the answer's codes that the completion gives; a missing code is wrong."""
    return sum(right for *_, right in decisions(completion, answer)) / len(codes_in(answer))


def codebook_reward(
    completions: Sequence[Any],
    answer: Sequence[str],
    log_extra: Callable[[str, list[Any]], object] = lambda name, values: None,
    **_: Any,
) -> list[float]:
    """The share of right codes, or whether all are where the answer begins with "all": a TRL reward function.

    Completions are strings or lists of chat messages. Logs as "step_scores" the characters of each decision's
    code, and 1.0 or 0.0.

    >>> codebook_reward(["codes Ka 17 Bo 28"] * 2, answer=["Ka 17 Bo 08", "all Ka 17 Bo 08"])
    [0.5, 0.0]
    """
    texts = texts_of(completions)
    taken = [decisions(*pair) for pair in zip(texts, answer, strict=True)]
    log_extra(
        "step_scores", [[[start, end, float(right)] for _, start, end, right in each] for each in taken]
    )
    shares = [share_right(*pair) for pair in zip(texts, answer, strict=True)]
    exact = [gold.startswith(EXACT) for gold in answer]
    return [float(share == 1) if all_ else share for share, all_ in zip(shares, exact, strict=True)]


def exact_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where every code is right, else 0.0, in every tier: a second reward, for methods that compare several.

    >>> exact_reward(["codes Ka 17", "codes Ka 95"], answer=["Ka 17", "Ka 17"])
    [1.0, 0.0]
    """
    texts = texts_of(completions)
    return [float(share_right(*pair) == 1) for pair in zip(texts, answer, strict=True)]
