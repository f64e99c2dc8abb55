"""Where in a completion its final answer stands: what the student *says* it is, right or wrong."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.signals.batch import RolloutBatch
from gear_rl.signals.engine import Engine, token_texts
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.segments import turn_ids

SEARCHED_CHARACTERS = 4000
"""A pattern of the user's is searched in so many characters at the end of each turn."""

_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"^####(?!#)(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class AnswerRegion(BatchSignal):
    """0 before the completion's final answer, 1 on its content, 2 on its delimiters and after it; -1 outside.

    A row without a 1 has no answer: ``answer_regions``. The pattern is the run's ``answer_pattern``.
    """

    name = "answer_region"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        texts = token_texts(engine.tokenizer, batch.completions.ids)
        region = answer_regions(texts, batch.completions.mask, batch.answer_pattern)
        answered_B = engine.gather((region == 1).any(-1).float())
        engine.log({"gear/answers": float(answered_B.mean()) if len(answered_B) else 0.0})
        return region


class _Answer(NamedTuple):
    """Character offsets: the delimiters begin at ``opens``, the content is ``begins:ends``."""

    opens: int
    begins: int
    ends: int


def answer_regions(
    texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"], pattern: str | None = None
) -> Int[Tensor, "B T"]:
    r"""0 before the completion's final answer, 1 on its content, 2 on its delimiters and all after; -1 outside.

    ``texts[b][t]`` is token ``t`` decoded alone. Each turn is searched by itself; the last turn with a match
    wins, and in it the last match. Without a pattern the answer is the last ``\boxed{...}`` with balanced braces,
    else the last ``<answer>...</answer>``, else the rest of the last line that starts with ``####``. Of a pattern
    the first group is the answer, or the whole match; only the last ``SEARCHED_CHARACTERS`` of a turn are
    searched for one. A token that overlaps the content is content; a row without an answer is all 0. Raises
    ``ValueError`` for a pattern that ``check_pattern`` refuses, and for texts that do not reach the last True
    token.

    >>> texts = [["so", " ", "\\boxed", "{", "4", "2", "}", "."]]
    >>> answer_regions(texts, torch.ones(1, 8, dtype=torch.bool))
    tensor([[0, 0, 2, 2, 1, 1, 2, 2]])
    >>> answer_regions(texts, torch.ones(1, 8, dtype=torch.bool), pattern=r"so")
    tensor([[1, 2, 2, 2, 2, 2, 2, 2]])
    """
    compiled = None if pattern is None else check_pattern(pattern)
    region = torch.where(mask, 0, -1)
    if len(texts) != len(mask):
        raise ValueError(f"texts: {len(texts)} rows, but mask has {len(mask)}; give one for every completion")
    if mask.numel() == 0:
        return region
    turn_id = cast(list[list[int]], turn_ids(mask).tolist())  # pyright: ignore[reportUnknownMemberType]
    regions = [_row_regions(b, row, turn_id[b], compiled) for b, row in enumerate(texts)]
    return torch.where(mask, torch.tensor(regions, device=mask.device), region)


def check_pattern(pattern: str) -> re.Pattern[str]:
    r"""The compiled pattern; ``ValueError`` if it is no regular expression, or repeats what is itself repeated.

    ``(a+)+`` may take time exponential in the text; possessive inner repetitions (``a++``) are the way out.
    Alternatives that overlap under a repetition (``(a|a)*``) are not recognised.

    >>> check_pattern(r"Answer: (\d+(?:,\d++)*)").search("Answer: 1,200").group(1)
    '1,200'
    >>> check_pattern(r"(\w+\s*)+")
    Traceback (most recent call last):
    ValueError: answer_pattern: '(\\w+\\s*)+' repeats what is itself repeated without bound, which may never ...
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"answer_pattern: {pattern!r} is not a regular expression ({error}); give one whose first group is "
            "the answer"
        ) from error
    if _nests_repetitions(pattern):
        raise ValueError(
            f"answer_pattern: {pattern!r} repeats what is itself repeated without bound, which may never come to "
            "an end; make the inner repetition possessive (a++ for a+)"
        )
    return compiled


_PIECE = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)|[()]|[*+?][+?]?|\{\d*,?\d*\}[+?]?|.", re.DOTALL
)


def _nests_repetitions(pattern: str) -> bool:
    """Whether a group that may be repeated for ever holds a repetition without bound that may give back."""
    open_groups, repeats, piece_repeats = [False], False, False
    for piece in _PIECE.findall(pattern):
        if piece == "(":
            open_groups.append(False)
            piece_repeats = False
        elif piece == ")":
            piece_repeats = open_groups.pop() if len(open_groups) > 1 else False
            open_groups[-1] |= piece_repeats
        elif re.fullmatch(r"[*+]\??|\{\d*,\}\??", piece):
            repeats |= piece_repeats
            open_groups[-1] = True
            piece_repeats = False
        else:
            piece_repeats = False
    return repeats


def _row_regions(
    b: int, texts: Sequence[str], turns: Sequence[int], pattern: re.Pattern[str] | None
) -> list[int]:
    tokens = [t for t, turn in enumerate(turns) if turn >= 0]
    if tokens and len(texts) <= tokens[-1]:
        raise ValueError(
            f"texts: row {b} has {len(texts)} tokens, but the mask is True on token {tokens[-1]}; give the text "
            "of every token, '' where there is none"
        )
    by_turn = [[t for t in tokens if turns[t] == turn] for turn in range(max(turns, default=-1) + 1)]
    for search in _SEARCHES if pattern is None else (_by_pattern(pattern),):
        for turn in reversed(by_turn):
            answer = search("".join(texts[t] for t in turn))
            if answer is not None:
                return _marked(answer, texts, turn, len(turns))
    return [0] * len(turns)


def _marked(answer: _Answer, texts: Sequence[str], turn: Sequence[int], width: int) -> list[int]:
    """The regions of a row whose answer stands in ``turn``; what they say of masked tokens is of no account."""
    begins, ends = answer.begins, answer.ends
    text = "".join(texts[t] for t in turn)
    begins += len(text[begins:ends]) - len(text[begins:ends].lstrip())
    ends -= len(text[begins:ends]) - len(text[begins:ends].rstrip())
    if begins >= ends:
        return [0] * width
    regions = [0] * (turn[-1] + 1) + [2] * (width - turn[-1] - 1)
    stops = list(accumulate(len(texts[t]) for t in turn))
    for t, start, stop in zip(turn, [0, *stops], stops, strict=False):
        if start < ends and stop > begins:
            regions[t] = 1
        elif stop > answer.opens:
            regions[t] = 2
    return regions


def _last_boxed(text: str) -> _Answer | None:
    """Braces are matched by a stack, in one pass: many boxes that nobody closes cost only their length."""
    heads = {match.end() - 1: match.start() for match in _BOXED.finditer(text)}
    stack: list[int] = []
    best = None
    for match in _BRACE.finditer(text) if heads else ():
        place = match.start()
        if match[0] == "{":
            stack.append(place)
        elif match[0] == "}" and stack:
            opened = stack.pop()
            if opened in heads and (best is None or opened > best.begins):
                best = _Answer(heads[opened], opened + 1, place)
    return best


def _last_tagged(text: str) -> _Answer | None:
    ends = text.rfind("</answer>")
    opens = text.rfind("<answer>", 0, max(ends, 0))
    return None if opens < 0 else _Answer(opens, opens + len("<answer>"), ends)


def _last_hashes(text: str) -> _Answer | None:
    return _last_of(_HASHES.finditer(text))


_SEARCHES = (_last_boxed, _last_tagged, _last_hashes)


def _by_pattern(pattern: re.Pattern[str]) -> Callable[[str], _Answer | None]:
    def search(text: str) -> _Answer | None:
        return _last_of(pattern.finditer(text, max(0, len(text) - SEARCHED_CHARACTERS)))

    return search


def _last_of(matches: Iterator[re.Match[str]]) -> _Answer | None:
    best = None
    for match in matches:
        group = 1 if match.re.groups else 0
        if match.start(group) >= 0:
            # A group inside a look-behind begins before its match does.
            opens = min(match.start(), match.start(group))
            best = _Answer(opens, match.start(group), match.end(group))
    return best
