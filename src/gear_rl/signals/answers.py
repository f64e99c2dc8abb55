"""Where in a completion its final answer stands: what the student *says* it is, right or wrong."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.answer_text import MARKS, Place
from gear_rl.engine import Engine, own_texts
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids

SEARCHED_CHARACTERS = 4000
"""A pattern of the user's is searched in so many characters at the end of each turn."""


@dataclass(frozen=True)
class AnswerRegion(BatchSignal):
    """0 before the completion's final answer, 1 on its content, 2 on its delimiters and after it; -1 outside.

    A row without a 1 has no answer: ``answer_regions``. The pattern is the run's ``answer_pattern``. The text is
    that which rewards see, without special tokens: a pattern may end in ``$``.
    """

    name = "answer_region"

    answer_pattern: str | None = None

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        mask = batch.completions.mask
        texts = own_texts(engine.tokenizer, batch.completions.ids, mask)
        region = answer_regions(texts, mask, self.answer_pattern)
        answered_B = engine.gather((region == 1).any(-1).float())
        engine.log({"gear/answers": float(answered_B.mean()) if len(answered_B) else 0.0})
        return region


def answer_regions(
    texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"], pattern: str | None = None
) -> Int[Tensor, "B T"]:
    r"""0 before the completion's final answer, 1 on its content, 2 on its delimiters and all after; -1 outside.

    ``texts[b][t]`` is the text of token ``t``. Each turn is searched by itself; the last turn with a match
    wins, and in it the last match. Without a pattern the answer is the last ``\boxed{...}`` with balanced braces,
    else the last ``<answer>...</answer>``, else the rest of the line after the last ``####``. A pattern's
    first group is the answer, or the whole match, within a turn's last ``SEARCHED_CHARACTERS``. A token that
    overlaps the content is content. Raises ``ValueError`` for a pattern that ``check_pattern`` refuses.

    >>> texts = [["so", " ", "\\boxed", "{", "4", "2", "}", "."]]
    >>> answer_regions(texts, torch.ones(1, 8, dtype=torch.bool))
    tensor([[0, 0, 2, 2, 1, 1, 2, 2]])
    >>> answer_regions(texts, torch.ones(1, 8, dtype=torch.bool), pattern=r"so")
    tensor([[1, 2, 2, 2, 2, 2, 2, 2]])
    """
    searches = MARKS if pattern is None else (partial(_by_pattern, check_pattern(pattern)),)
    turn_id = map(int_list, turn_ids(mask).cpu())
    regions = [_row_regions(row, turns, searches) for row, turns in zip(texts, turn_id, strict=True)]
    found = torch.tensor(regions, dtype=torch.int64, device=mask.device).view(mask.shape)
    return torch.where(mask, found, -1)


def check_pattern(pattern: str) -> re.Pattern[str]:
    r"""The compiled pattern; ``ValueError`` if it is no regular expression, or repeats what is itself repeated.

    ``(a+)+`` may take time exponential in the text; possessive inner repetitions (``a++``) are the way out.
    Alternatives that overlap under a repetition (``(a|a)*``) are not recognised.

    >>> check_pattern(r"Answer: (\d+(?:,\d++)*)").search("Answer: 1,200").group(1)
    '1,200'
    >>> check_pattern(r"(\w+\s*)+")
    Traceback (most recent call last):
    ValueError: answer_pattern: '(\\w+\\s*)+' repeats what is itself repeated without bound, so a search ...
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
            f"answer_pattern: {pattern!r} repeats what is itself repeated without bound, so a search may never "
            "end; make the inner repetition possessive (a++ for a+)"
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
    texts: Sequence[str], turns: Sequence[int], searches: Sequence[Callable[[str], Place | None]]
) -> list[int]:
    """The regions of a row; what they say of masked tokens is not read."""
    by_turn = [[t for t, own in enumerate(turns) if own == k] for k in range(max(turns, default=-1), -1, -1)]
    found = (
        (turn, answer)
        for search in searches
        for turn in by_turn
        if (answer := search("".join(texts[t] for t in turn))) is not None
    )
    turn, (opens, begins, ends) = next(found, (list[int](), (0, 0, 0)))
    content = "".join(texts[t] for t in turn)[begins:ends]
    begins += len(content) - len(content.lstrip())
    ends -= len(content) - len(content.rstrip())
    if begins >= ends:
        return [0] * len(turns)
    regions = [0] * (turn[-1] + 1) + [2] * (len(turns) - turn[-1] - 1)
    stops = list(accumulate(len(texts[t]) for t in turn))
    for t, start, stop in zip(turn, [0, *stops], stops, strict=False):
        if start < ends and stop > begins:
            regions[t] = 1
        elif stop > opens:
            regions[t] = 2
    return regions


def _by_pattern(pattern: re.Pattern[str], text: str) -> Place | None:
    best = None
    for match in pattern.finditer(text, max(0, len(text) - SEARCHED_CHARACTERS)):
        begins, ends = match.span(1 if pattern.groups else 0)
        if begins >= 0:
            # A group inside a look-behind begins before its match does.
            best = min(match.start(), begins), begins, ends
    return best
