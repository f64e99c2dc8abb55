"""Where the sentences and the lines of a completion begin, from the text of its tokens."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.engine import Engine, own_texts
from gear_rl.rollouts import RolloutBatch
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.lists import int_list
from gear_rl.tensor.segments import turn_ids

# Each pattern takes along the white space that follows; the group is what stands before it. Possessive repeats
# and the look-behind keep the search linear in the text: a model may write dots or newlines for pages.
_CJK_MARK, _CJK_CLOSER = r"[\u3002\uff01\uff1f\uff61]", r"[\"'\u201d\u2019\u300d\u300f\uff09]"
_CLOSER = r"[\"'`)\]}*_$\u201d\u2019\xbb]"
SENTENCE_END = re.compile(rf"(?<![.!?])([.!?]++{_CLOSER}*+)\s++|({_CJK_MARK}++{_CJK_CLOSER}*+)\s*+|()\n\s*+")
LINE_END = re.compile(r"()\n\s*+")


@dataclass(frozen=True)
class SentenceId(BatchSignal):
    """Which sentence of the completion a token belongs to: 0, 1, 2, ...; -1 outside the mask.

    A sentence ends with a full stop, an exclamation or a question mark (and what closes after it) where white
    space follows; with the marks of Chinese and Japanese; with a line; and with the turn. An abbreviation, an
    initial or the number of a list ends one too.
    """

    name = "sentence_id"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return _ids_of(batch, engine, SENTENCE_END)


@dataclass(frozen=True)
class LineId(BatchSignal):
    """Which line of the completion a token belongs to: 0, 1, 2, ...; -1 outside the mask.

    A line ends with its newline, and with the turn. Blank lines belong to the line before them.
    """

    name = "line_id"

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return _ids_of(batch, engine, LINE_END)


def _ids_of(batch: RolloutBatch, engine: Engine, end: re.Pattern[str]) -> Tensor:
    ids, mask = batch.completions.ids, batch.completions.mask
    return unit_ids(own_texts(engine.tokenizer, ids, mask, skip_special_tokens=False), mask, end)


def unit_ids(
    texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"], end: re.Pattern[str], *, lines: bool = True
) -> Int[Tensor, "B T"]:
    """Number the sentences or the lines of each completion from 0; -1 outside the mask.

    ``texts[b][t]`` is the text of token t. A token belongs where its first character that is not white space
    does; one without text to the unit of the token before. With ``lines`` the next unit begins behind the last
    line break of ``end``, else behind its group.

    >>> texts = [["Pi", " is", " 3", ".", "14", ".", " So", " what", "?"]]
    >>> unit_ids(texts, torch.ones(1, 9, dtype=torch.bool), SENTENCE_END)
    tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1]])
    """
    rows: list[list[int]] = []
    # On the host once: a tensor that is read or written token by token would wait for the device B * T times.
    for row, turn in zip(texts, map(int_list, turn_ids(mask).cpu()), strict=True):
        places: dict[int, list[int]] = {}
        for t, number in enumerate(turn):
            if number >= 0:
                places.setdefault(number, []).append(t)
        ids, last = [-1] * len(turn), -1
        for tokens in places.values():
            units = _units([row[t] for t in tokens], end, lines)
            # A turn begins with a new number; a unit that lies inside one token leaves none behind.
            for i, t in enumerate(tokens):
                last += i == 0 or units[i] != units[i - 1]
                ids[t] = last
        rows.append(ids)
    return torch.tensor(rows, dtype=torch.int64, device=mask.device).view(mask.shape)


def _units(texts: Sequence[str], end: re.Pattern[str], lines: bool) -> list[int]:
    """How many units of the turn ended before each token."""
    text = "".join(texts)
    first, beyond = len(text) - len(text.lstrip()), len(text.rstrip())
    begins: list[int] = []
    for match in end.finditer(text):
        newline = text.rfind("\n", match.start(), match.end()) if lines else -1
        begin = newline + 1 if newline >= 0 else max(match.end(group) for group in range(1, end.groups + 1))
        # White space alone is no unit, neither before the first word nor after the last.
        if first < begin < beyond:
            begins.append(begin)
    units: list[int] = []
    place = 0
    for token in texts:
        bare = len(token) - len(token.lstrip())
        # A token without text stays with the one before.
        units.append(bisect_right(begins, place + bare % len(token)) if token else (units or [0])[-1])
        place += len(token)
    return units
