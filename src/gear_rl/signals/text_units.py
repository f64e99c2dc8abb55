"""Where the sentences and the lines of a completion begin, from the text of its tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gear_rl.signals.batch import RolloutBatch
from gear_rl.signals.engine import Engine, token_texts
from gear_rl.signals.signal import BatchSignal
from gear_rl.tensor.segments import turn_ids

# Each pattern takes along the white space that follows; the group is what stands before it. Possessive repeats
# and the look-behind keep the search linear in the text: a model may write dots or newlines for pages.
_CJK_MARK, _CJK_CLOSER = r"[\u3002\uff01\uff1f\uff61]", r"[\"'\u201d\u2019\u300d\u300f\uff09]"
_CLOSER = r"[\"'`)\]}*_$\u201d\u2019\xbb]"
_SENTENCE_END = re.compile(rf"(?<![.!?])([.!?]++{_CLOSER}*+)\s++|({_CJK_MARK}++{_CJK_CLOSER}*+)\s*+|()\n\s*+")
_LINE_END = re.compile(r"()\n\s*+")


@dataclass(frozen=True)
class SentenceId(BatchSignal):
    """Which sentence of the completion a token belongs to: 0, 1, 2, ...; -1 outside the mask."""

    name = "sentence_id"
    late = True

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return sentence_ids(token_texts(engine.tokenizer, batch.completions.ids), batch.completions.mask)


@dataclass(frozen=True)
class LineId(BatchSignal):
    """Which line of the completion a token belongs to: 0, 1, 2, ...; -1 outside the mask."""

    name = "line_id"
    late = True

    def compute(self, batch: RolloutBatch, engine: Engine) -> Tensor:
        return line_ids(token_texts(engine.tokenizer, batch.completions.ids), batch.completions.mask)


def sentence_ids(texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the sentences of each completion from 0; -1 outside the mask.

    ``texts[b][t]`` is token t decoded alone. A sentence ends with a full stop, an exclamation or a question mark
    (and what closes after it) where white space follows; with the marks of Chinese and Japanese; with a line; and
    with the turn. A token belongs where its first character that is not white space does; one without text to the
    sentence of the token before. An abbreviation, an initial or the number of a list ends a sentence. Raises
    ``ValueError`` where ``texts`` has not one entry for each token.

    >>> texts = [["Pi", " is", " 3", ".", "14", ".", " So", " what", "?"]]
    >>> sentence_ids(texts, torch.ones(1, 9, dtype=torch.bool))
    tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1]])
    """
    return _numbered(texts, mask, _SENTENCE_END)


def line_ids(texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the lines of each completion from 0; -1 outside the mask.

    A line ends with its newline, and with the turn. Blank lines belong to the line before them, the indentation
    of a line to it. Raises ``ValueError`` as ``sentence_ids``.

    >>> line_ids([["a", " =", " 1", "\\n\\n", "  ", "b"]], torch.ones(1, 6, dtype=torch.bool))
    tensor([[0, 0, 0, 0, 1, 1]])
    """
    return _numbered(texts, mask, _LINE_END)


def _numbered(
    texts: Sequence[Sequence[str]], mask: Bool[Tensor, "B T"], end: re.Pattern[str]
) -> Int[Tensor, "B T"]:
    num_tokens = mask.shape[1]
    if len(texts) != len(mask) or any(len(row) != num_tokens for row in texts):
        raise ValueError(
            f"texts: {len(texts)} rows of {sorted({len(row) for row in texts})} tokens, but mask has shape "
            f"{tuple(mask.shape)}; give one text for each token, padding included"
        )
    rows: list[list[int]] = []
    # On the host once: a tensor that is read or written token by token would wait for the device B * T times.
    turns = cast(list[list[int]], turn_ids(mask).tolist())  # pyright: ignore[reportUnknownMemberType]
    for row, turn in zip(texts, turns, strict=True):
        places: dict[int, list[int]] = {}
        for t, number in enumerate(turn):
            if number >= 0:
                places.setdefault(number, []).append(t)
        ids, last = [-1] * num_tokens, -1
        for tokens in places.values():
            units = _units([row[t] for t in tokens], end)
            # A turn begins with a new number; a unit that lies inside one token leaves none behind.
            for i, t in enumerate(tokens):
                last += i == 0 or units[i] != units[i - 1]
                ids[t] = last
        rows.append(ids)
    return torch.tensor(rows, dtype=torch.int64, device=mask.device).view(mask.shape)


def _units(texts: Sequence[str], end: re.Pattern[str]) -> list[int]:
    """How many units of the turn ended before each token."""
    text = "".join(texts)
    first, beyond = len(text) - len(text.lstrip()), len(text.rstrip())
    begins: set[int] = set()
    for match in end.finditer(text):
        newline = text.rfind("\n", match.start(), match.end())
        begin = newline + 1 if newline >= 0 else max(match.end(group) for group in range(1, end.groups + 1))
        # White space alone is no unit, neither before the first word nor after the last.
        if first < begin < beyond:
            begins.add(begin)
    ordered = sorted(begins)
    units: list[int] = []
    place = count = 0
    for token in texts:
        if token:
            bare = len(token) - len(token.lstrip())
            at = place + (bare if bare < len(token) else 0)
            while count < len(ordered) and ordered[count] <= at:
                count += 1
            place += len(token)
        units.append(count)
    return units
