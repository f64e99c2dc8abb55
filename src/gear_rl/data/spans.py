"""From characters of a text to its tokens, for any tokenizer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

_BACK = 4
"""Tokens that may write one character: UTF-8 has at most four bytes."""


def token_span(tokenizer: Any, text: str, ids: Sequence[int], start: int, end: int) -> range | None:
    """The places of ``ids``, the tokens of ``text``, that overlap its characters ``start`` to ``end``.

    A token that writes a part of a character overlaps it. Decodes beginnings of ``ids``, since offsets may leave
    out a token's space. Where decoding does not give the text back, the tokenizer's offsets decide. None where it
    has none, or no token overlaps.

    >>> class Letters:
    ...     def decode(self, ids, **_):
    ...         return "".join(map(chr, ids))
    >>> token_span(Letters(), "abcd", [97, 98, 99, 100], 1, 3)
    range(1, 3)
    """

    def written(count: int) -> str:
        return tokenizer.decode(
            list(ids[:count]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def whole(count: int) -> int:
        """Characters that the first tokens write completely."""
        most = 0
        # A part of a character is decoded as replacement characters. Sentencepiece then replaces the characters
        # of single bytes before it too, so fewer tokens may write more.
        for fewer in range(count, max(count - _BACK, 0) - 1, -1):
            beginning = written(fewer)
            same = takewhile(lambda pair: pair[0] == pair[1], zip(beginning, text, strict=False))
            most = max(most, sum(1 for _ in same))
            if text.startswith(beginning):
                break
        return most

    def touched(count: int) -> int:
        """The whole characters, and the character that the tokens have begun."""
        return whole(count) + (not text.startswith(written(count)))

    if written(len(ids)) != text:
        return _by_offsets(tokenizer, text, start, end)
    counts = range(len(ids) + 1)
    first = bisect_left(counts, True, key=lambda count: touched(count) > start) - 1
    stop = bisect_left(counts, True, key=lambda count: whole(count) >= end)
    return range(first, stop) if first < stop else None


def _by_offsets(tokenizer: Any, text: str, start: int, end: int) -> range | None:
    if not getattr(tokenizer, "is_fast", False):
        return None
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    overlapping = [t for t, (begin, stop) in enumerate(offsets) if max(begin, start) < min(stop, end)]
    return range(overlapping[0], overlapping[-1] + 1) if overlapping else None
