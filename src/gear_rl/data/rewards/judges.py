"""Whether a text gives the gold answer: letters, words, dates are compared as text, the rest by math-verify."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from gear_rl.answer_text import plain_writing, said_answers

MOST_WORDS = 3
"""A gold answer of so many words is read as these words, of more only where it is marked."""
Verdict = tuple[str, bool]
"""An answer, and whether it is right."""
Judge = Callable[[str], Verdict | None]
"""Reads the answer in a text; None where it finds none."""

_WORD = r"[^\W\d_]{2,}"
_FUNCTION = r"(?:pi|inf|infinity|sqrt|a?(?:sin|cos|tan)h?|sec|csc|cot|log|ln|exp|mod|and|or|d[xyt])\b"
_TEXT = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf)|mbox)\s*"

_NO_ANSWER = re.compile(r"(?:proof|not\s?found|n/?a|none|null|nan|unknown)?[\s.?-]*", re.IGNORECASE)
"""What data sets write where there is no gold answer."""
_AS_TEXT = [
    re.compile(r"\b(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[-/]\d{1,2}[-/]\d{4})\b()"),
    re.compile(r"\b(\d{1,2}:\d{2}(?::\d{2})?)(?:\s*([AaPp])\.?\s?[Mm]\b\.?)?"),
    re.compile(r"\b(\d[\dA-Fa-f]*)_\{?(\d+)\}?"),
]
"""Dates, times and numbers in a base: a main part, and one that counts where both have it."""
_LABEL = re.compile(r"\A(?:(?i:option|choice)\s+)?\(?([A-J])(?:[).:]+\s*|\Z)")
"""The letter of a choice: "C", "(C) 42", "Option C"."""
_CHOSEN = re.compile(
    r"\A(?!\W*[A-J](?:(?:\W+[A-J]){2,}|(?:\s+|\)\s*\()[A-J])\W*\Z)"
    r"(?:(?i:the|option|choice|letter|选项?)\s*)*\W*([A-J])(?![\w'\u2019])"
    r"(?![)\s]*(?:[,/&|]|or\b|and\b)\s*\(?[A-J]\b)(?!;\s*\(?[A-J]\)?\W*\Z)|\A\W*([a-j])\W*\Z"
)
"""One letter, with more words behind it or none; two letters are no choice."""
_BRACKETED = re.compile(r"(?<!not )\(([A-J])\)((?:[\s,;/&|]*+(?:or|and)?+\s*+\([A-J]\))*)")
_WORDS = re.compile(rf"(?!{_FUNCTION}\Z)(?:{_WORD}|[\u3000-\u9fff])(?:[\s,'\u2019-]+[^\W\d_]+)*")

_UNWRAPPED = re.compile(_TEXT + r"\{([^{}]*)\}")
_SPACES = re.compile(r"(?<!\\)\\(?:[ ,;!()\[\]]|q?quad\b)|[$~`]")
_LEAD = re.compile(rf"\A(?:(?!{_FUNCTION}){_WORD}[,:]?\s+(?![-+*/=^<>]\s))+")
"""Words before a value; "total = 5" is an equation."""
_PROSE = re.compile(
    rf"—|[\u3000-\u9fff]|,?\s+\(?(?:a\s+)?(?!{_FUNCTION}){_WORD}(?!{_WORD}|\s+[-+*/=^<>]\s)"
    rf"|{_TEXT}\{{(?!\s*(?:and|or)\b)[^{{}}]{{2,}}\}}"
)
"""Where the value ends and its unit or a sentence begins."""
_NUMBER = re.compile(r"(?<!\^)(?<!\^\{)\d|\\[a-z]")
_FORMULAS = [
    (re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree\b|\bdegrees?\b)(?:\s*[CF]\b)?"), ""),
    (re.compile(r"\s*\bper ?cent\b"), r"\\%"),
    (re.compile(r"(?<![\w-])(?:negative|minus)\s+(?=[.\d\\])", re.IGNORECASE), "-"),
    (re.compile(r"√\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+(?:\.\d+)?|[a-z]))"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"(?<=\d)\s*x\s*(?=10\^)"), r"\\times "),
    (re.compile(r"π|(?<![\\A-Za-z])pi\b"), r"\\pi "),
]
_VALUES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\A-?\d{1,3}(?:\s\d{3})+(?=\.\d|\Z)"), lambda number: "".join(number[0].split())),
    (re.compile(r"\A(\d[\dA-F]*)_\{?\d+\}?\Z"), r"\1"),  # the question names the base
    (re.compile(r"\A(?=[<>]|\\[lgn]eq?\b)"), "x "),  # a relation without its left side is no number
    (re.compile(r"\A\(([-\d./]+)\)\Z"), r"\1"),
]
"""What math-verify reads otherwise, or not at all: anywhere in a formula, and as the whole of a value."""
_SYMBOLS = str.maketrans(
    {"≠": r"\neq ", "≤": r"\leq ", "≥": r"\geq ", "\u00d7": r"\times ", "·": r"\cdot ", "∞": r"\infty "}
    | {power: f"^{n}" for n, power in enumerate("²³⁴⁵⁶⁷⁸⁹", start=2)}
)


def judge_of(gold: str, maths: "Maths") -> Judge | None:
    """The judge of texts for a gold answer; None for one that cannot be read."""
    gold = plain_writing(gold).strip()
    said, marked = said_answers(gold)
    answer = said[0] if said else gold
    text = _without_markup(answer)
    if _NO_ANSWER.fullmatch(text):
        return None
    for pattern in _AS_TEXT:
        if match := pattern.fullmatch(text):
            return _by_pattern(match, pattern)
    if label := _LABEL.match(text):
        return _by_letter(label[1], _by_value(text[label.end() :], maths))
    if _WORDS.fullmatch(text) and (marked or len(text.split()) <= MOST_WORDS):
        return _by_words(text.casefold())
    return _by_value(answer, maths)


def _judge(find: Judge, find_unsaid: Judge) -> Judge:
    """Looks where the text says its answer; elsewhere only if it does not."""

    def judge(text: str) -> Verdict | None:
        text = plain_writing(text)
        said, marked = said_answers(text)
        found = next(filter(None, map(find, said)), None)
        return found if found or marked else find_unsaid(text)

    return judge


def _by_pattern(gold: re.Match[str], pattern: re.Pattern[str]) -> Judge:
    right, right_tail = _parts(gold)

    def find(content: str, last: int = 1) -> Verdict | None:
        text = _without_markup(content)
        matches = [*pattern.finditer(text)][-last:]
        if not matches:
            return (text, True) if text.casefold() == right else None  # a number without its base
        main, tail = _parts(matches[-1])
        same = main == right and (tail == right_tail or not tail or not right_tail)
        return text if len(matches) > 1 else matches[0][0], same and len(matches) == 1

    return _judge(lambda content: find(content, last=2), find)


def _parts(match: re.Match[str]) -> list[str]:
    return [re.sub(r"\b0+(?=\d)", "", part or "").casefold() for part in match.groups()]


def _by_letter(letter: str, by_value: Judge | None) -> Judge:
    def find(content: str) -> Verdict | None:
        choice = _CHOSEN.match(_without_markup(content))
        if choice:
            return choice[0], (choice[1] or choice[2]).upper() == letter
        return by_value(f"\\boxed{{{content}}}") if by_value else None

    def find_unsaid(text: str) -> Verdict | None:
        first, bracketed = _LABEL.match(_without_markup(text)), _BRACKETED.findall(text)
        chosen = first[1] if first else next((one for one, more in bracketed[-1:] if not more), None)
        return None if chosen is None else (chosen, chosen == letter)

    return _judge(find, find_unsaid)


def _by_words(words: str) -> Judge:
    same = re.compile(rf"(?:the\s+)?{re.escape(words)}(?=\s*(?:[.,;:!)(]|\Z|because\b|since\b|as\b))")

    def find(content: str) -> Verdict:
        text = _without_markup(content)
        return text, same.match(text.casefold()) is not None

    return _judge(find, lambda text: None if "\n" in text.strip() else find(text))


def _by_value(gold: str, maths: "Maths") -> Judge | None:
    right = maths.read_gold(gold)
    if not right:
        return None

    def find(content: str) -> Verdict | None:
        values = maths.read(content)
        return (str(values[-1]), maths.equal(right, values)) if values else None

    def find_unsaid(text: str) -> Verdict | None:
        values = maths.read_prose(text)
        return (str(values[-1]), maths.equal(right, values)) if values else None

    return _judge(find, find_unsaid)


class Maths:
    """math-verify's parser and comparison, without its time limits."""

    def __init__(self) -> None:
        from math_verify import parse, verify
        from sympy import Integer

        self._parse, self._verify, self._zero = parse, verify, Integer(0)

    def read_gold(self, text: str) -> list[Any]:
        """The value of a gold answer; fails for a tower of powers, before a completion pays for it."""
        values = self.read_prose(text)
        self.equal(values, [self._zero])  # parsing does not compute
        return values

    def read(self, content: str) -> list[Any]:
        """The value that an answer begins with, behind words and before a unit; empty without one."""
        return self._parse_value(_split(content)[0])

    def read_prose(self, text: str) -> list[Any]:
        """The value that a text is, with words before it or a unit behind it, else its last formula or number."""
        value, rest = _split(text.strip())
        has_unit = _NUMBER.search(value) and not _NUMBER.search(_UNWRAPPED.sub(r"\1", rest))
        values = self._parse_value(value) if "\n" not in value and (not rest or has_unit) else []
        return values or self._parse(text, parsing_timeout=0)

    def _parse_value(self, value: str) -> list[Any]:
        value = value.strip(" \n,;:").rstrip(".")
        for pattern, written in _VALUES:
            value = pattern.sub(written, value)
        # Without a box math-verify reads only plain numbers; words would be products of letters.
        bare = not value or re.fullmatch(rf"(?!{_FUNCTION}){_WORD}", value)
        return [] if bare else self._parse(f"\\boxed{{{value}}}", parsing_timeout=0)

    def equal(self, gold: list[Any], values: list[Any]) -> bool:
        """Whether math-verify finds one of the values equal, to six decimals; to more for a small gold one."""
        try:
            size = abs(float(gold[0]))
        except (IndexError, TypeError, ValueError, OverflowError):
            size = 1.0
        decimals = max(6, 3 - math.floor(math.log10(size))) if 0 < size < 1 else 6
        verified: Any = partial(
            self._verify, float_rounding=decimals, timeout_seconds=None, raise_on_error=True
        )
        return bool(verified(gold, values)) and not self._differ(gold, values, verified)

    def _differ(self, gold: list[Any], values: list[Any], verified: Callable[[Any, Any], bool]) -> bool:
        """Whether two equations without a real solution differ: to math-verify all of these are equal."""
        from sympy import Eq, S, simplify, solveset

        if not isinstance(gold[0], Eq) or not isinstance(values[0], Eq) or gold[-1] == values[-1]:
            return False
        sides: list[Any] = [*gold[0].args, *values[0].args]
        if not all(getattr(side, "is_scalar", False) for side in sides):  # sets and matrices: no difference
            return False
        left, right, own_left, own_right = sides
        names = gold[0].free_symbols
        if not names:  # sums of numbers, and the constants e and I
            return not (verified(left, own_left) and verified(right, own_right))
        factor = simplify((left - right) / (own_left - own_right))
        if factor.is_number and factor.is_finite and factor:
            return False
        real = {name for name in names if name.is_real is not False}  # math-verify's i is imaginary
        return all(solveset(left - right, name, S.Reals) is S.EmptySet for name in real)


def _without_markup(content: str) -> str:
    return " ".join(_SPACES.sub(" ", _UNWRAPPED.sub(r"\1", content)).split()).rstrip(".,;: ")


def _split(content: str) -> tuple[str, str]:
    """A value and what follows it; what stands before it, such as a choice's letter, is left out."""
    content = _SPACES.sub(" ", content).strip()
    while match := _UNWRAPPED.match(content):
        content = f"{match[1]} {content[match.end() :]}".strip()
    content = _LABEL.sub("", content) or content
    content = content.translate(_SYMBOLS)
    for pattern, written in _FORMULAS:
        content = pattern.sub(written, content)
    content = _LEAD.sub("", content)
    end = None if r"\begin" in content else _PROSE.search(content)
    return (content[: end.start()], content[end.start() :]) if end else (content, "")
