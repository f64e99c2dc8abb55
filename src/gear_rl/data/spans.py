"""From characters of a text to its tokens."""

from typing import Any


def token_span(tokenizer: Any, text: str, start: int, end: int) -> range | None:
    """The places of the tokens of ``text`` that overlap its characters ``start`` to ``end``.

    A token that writes a part of a character overlaps it. None where no token overlaps, or the tokenizer has no
    offsets.

    >>> from gear_rl.arena.model import load
    >>> token_span(load()[1], "37 +8 = 45", 3, 5)
    range(1, 2)
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    overlapping = [t for t, (begin, stop) in enumerate(offsets) if max(begin, start) < min(stop, end)]
    return range(overlapping[0], overlapping[-1] + 1) if overlapping else None
