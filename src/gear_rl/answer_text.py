"""Where a text says its final answer: rewards, and the signal of an answer's place, read it alike."""

import re
from collections.abc import Callable
from decimal import Decimal

Place = tuple[int, int, int]
"""Character offsets: the delimiters begin at the first, the content lies between the other two."""

MOST_SENTENCES = 9
"""So many sentences with "answer is" are read, from the last one back."""

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"(?<!#)####(?!#)(?![ \t]*+(?:\d++[.)][ \t]++)?+[^\W\d_]{2,}+(?!\W*\Z))")
"""GSM8K's. A line that begins with a word or "1. Word" is a heading, unless that word ends the text."""
_SAID = re.compile(
    r"(?:\b(?:answer|(?:correct|right) (?:option|choice)(?= is\W+[A-J]\b))"
    r"(?:[^\n.:=]{0,40}?\b(?:is|are)\b|\s*+\d*+\s*+(?:\([^()\n]*\)\s*+)?[:=])|答案[^\n,。]{0,10}?[:=是为])"
    r"[\s:是为*}]*+(?!not\b)(?=(.{1,400}))",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?。](?=\s|$)")

_CHARACTERS = str.maketrans(
    {
        **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # full-width
        **dict.fromkeys((0x2212, 0xFE63), "-"),  # minus signs
        **{ord(sign): f" {one}/{of}" for sign, one, of in ("½12", "⅓13", "⅔23", "¼14", "¾34")},
    }
)
_SPACE = r"(?:[\s~]|\\[ ,;])"
_POWERS = {"thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12"}
_WRITINGS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<![\w)\]}])\u2013(?=\d)"), "-"),  # an en dash
    (re.compile(r"(?<!\w)\*\*(?=\S)(.{1,400}?)\*\*(?!\w)"), r"\1"),
    (re.compile(r"(?<=\d)(?:\{,\}|,?(?:\\[ ,;]|\\! ?))(?=\d{3}(?!\d))"), ""),  # 9{,}500
    (re.compile(r"(?:\\\$|[€£¥₹])\s?(?=[\d.])|(?<=\d)\s?(?:\\\$|[€£¥₹])"), ""),
    (re.compile(r"(?<=\d)[ \t]+:[ \t]*(?=\d)"), ":"),  # 3 : 10
    (re.compile(r"(?<=[\u3000-\u9fff])(?=[-\d$\\])"), " "),
    (
        re.compile(rf"(?<=\d){_SPACE}*\\text\{{\s*((?:{'|'.join(_POWERS)})\b[^{{}}]*)\}}", re.IGNORECASE),
        r" \1",
    ),
    *((re.compile(rf"(?<=\d){_SPACE}+{word}\b", re.IGNORECASE), power) for word, power in _POWERS.items()),
    (
        re.compile(r"(?<![\w.])(?:\d++(?:\.\d*+)?|\.\d++)[eE][-+]?\d{1,3}(?!\w)"),
        lambda number: f"{Decimal(number[0]):f}",
    ),
    (re.compile(r"(?<![\d./^])(?<!\^\{)(\d+)[ \t]+(\d+)/(\d+)(?![\d/])"), r"(\1+\2/\3)"),  # 2 2/3
]
"""One way of writing for what has several, anywhere in a text."""


def plain_writing(text: str) -> str:
    r"""The text with one minus, digits without separators, powers of ten or currencies, and no bold face.

    >>> plain_writing(r"**Answer:** \$9{,}500, €7, 1.5e6, 2 2/3"), plain_writing("\u22127")
    ('Answer: 9500, 7, 1500000, (2+2/3)', '-7')
    """
    text = text.translate(_CHARACTERS)
    for pattern, written in _WRITINGS:
        text = pattern.sub(written, text)
    return text


def said_answers(text: str) -> tuple[list[str], bool]:
    r"""The answers that a text says it has, the surest first, and whether delimiters mark them.

    The last box, else the last ``<answer>``, else the last ``####``; without any the sentences after "answer is",
    from the last one back.

    >>> said_answers(r"\boxed{41} wait, \boxed{42}"), said_answers("The answer is 42. It was 41 before.")
    ((['42'], True), (['42'], False))
    >>> said_answers("<answer>The answer is 18.</answer>"), said_answers("18")
    ((['18'], True), ([], False))
    """
    for search in MARKS:
        place = search(text)
        if place is not None:
            content = text[place[1] : place[2]].strip()
            return said_answers(content)[0] or [content], True
    said = [*_SAID.finditer(text)][: -MOST_SENTENCES - 1 : -1]
    return [_SENTENCE_END.split(match[1])[0].strip() for match in said], False


def _last_boxed(text: str) -> Place | None:
    """Braces are matched by a stack, in one pass: boxes that are never closed cost only their length."""
    heads = {match.end() - 1: match.start() for match in _BOXED.finditer(text)}
    stack: list[int] = []
    best = None
    for match in _BRACE.finditer(text) if heads else ():
        place = match.start()
        if match[0] == "{":
            stack.append(place)
        elif match[0] == "}" and stack:
            opened = stack.pop()
            if opened in heads and (best is None or opened > best[1]):
                best = heads[opened], opened + 1, place
    return best


def _last_tagged(text: str) -> Place | None:
    ends = text.rfind("</answer>")
    opens = text.rfind("<answer>", 0, max(ends, 0))
    return None if opens < 0 else (opens, opens + len("<answer>"), ends)


def _last_hashes(text: str) -> Place | None:
    places = [match.span() for match in _HASHES.finditer(text)]
    if not places:
        return None
    opens, begins = places[-1]
    return opens, begins, len(text) if (line_end := text.find("\n", begins)) < 0 else line_end


MARKS = (_last_boxed, _last_tagged, _last_hashes)
"""The delimiters of an answer, the surest first."""
