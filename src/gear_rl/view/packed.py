"""One record as a browser reads it: its numbers rounded to what a screen can show, packed and compressed.

The other half of this file is ``viewer/data.js``. Knows no page.
"""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gear_rl.records import Record
from gear_rl.view.terminal import FULL, Run, number, runs, visible
from gear_rl.view.turns import by_turn, has_turns, last_user_text

_SHORT = 64  # characters of a token that comes again, unlike a tool's answer
_PER_TOKEN = ("ids", "mask", "turn", "segment", "credit", "weight")


class Laid(NamedTuple):
    """A record, how the page lays it out, and where in the completion each token of the layout stands."""

    record: Record
    shown: Record
    position: list[int]
    boxes: list[Run]
    """Segments of two tokens or more, in the order of the layout."""


def laid_out(record: Record) -> Laid:
    """What ``by_turn`` makes of the record, but trained tokens keep their text: the layout is the page's work.

    ``ValueError`` or ``TypeError`` where a list of the record has not one entry per token, or a field is not
    what its name says.
    """
    _check(record)
    shown, position = by_turn(record), list(range(len(record.tokens)))
    if has_turns(record):
        position = [t for t in position if record.mask[t] or t == 0 or record.mask[t - 1]]
        for place, t in enumerate(position):
            shown.tokens[place] = (
                record.tokens[t] if record.mask[t] else shown.tokens[place].removesuffix("\n")
            )
    shown = replace(shown, prompt=last_user_text(record.prompt))
    return Laid(record, shown, position, [run for run in runs(shown) if run.bracketed])


def pack(laid: Laid) -> bytes:
    """The record as zlib data: a length (4 bytes, little endian), that many bytes of JSON, then the columns.

    Tool answers are one token each and without chat markup, as ``by_turn`` lays them out; trained tokens stay
    as they are. All text is ``visible`` but for line breaks. ``columns`` in the JSON names what follows: for
    kind ``i`` whole numbers of 4 bytes, for ``h`` half floats in units of ``scale``, the column's largest
    value, so that three digits hold whatever the unit; the bytes of a column are sorted by significance, which
    compresses better. Nan stands for what was not finite.

    >>> record = Record(
    ...     step=1, group=0, method="gear", prompt="1+1", tokens=["2"], ids=[7], mask=[1], turn=[0],
    ...     segment=[0], reward=1.0, advantage=0.5, credit=[0.5], weight=[1.0],
    ... )
    >>> data = zlib.decompress(pack(laid_out(record)))
    >>> head = 4 + int.from_bytes(data[:4], "little")
    >>> json.loads(data[4:head])["words"], data[-2:].hex()
    (['2'], '003c')
    """
    record, shown, position, boxes = laid
    words, word = _words(shown)
    prompt, whole = _lines(shown.prompt), _lines(record.prompt)
    unit, full = scale_of(record)
    header: dict[str, Any] = {
        "length": len(shown.tokens),
        "prompt": prompt,
        "whole": whole if whole != prompt else "",
        "words": [_token(text) if len(text) < _SHORT else _lines(text) for text, _ in words],
        "ids": [token_id for _, token_id in words],
        "boxes": [(run.start, run.stop, int(run.onset)) for run in boxes],
        "turns": has_turns(record),
        "unit": unit,
        "full": full,
        "fallback": _name(record.fallback),
        "context": _name(record.context),
        "teacher": _lines(record.teacher_prompt or ""),
        "tools": {visible(kind): count for kind, count in record.tools.items()},
        "truncated": record.truncated,
    }
    whole_numbers = {"position": position, "word": word, "mask": shown.mask, "turn": shown.turn}
    columns: list[dict[str, Any]] = []
    packed: list[bytes] = []
    for name, values in {**whole_numbers, "segment": shown.segment}.items():
        columns.append({"name": name, "kind": "i"})
        packed.append(_by_significance(np.asarray(values, dtype="<i4")))
    for name, values in {"credit": shown.credit, "weight": shown.weight, **shown.signals}.items():
        halves, scale = _halves(values)
        columns.append({"name": visible(name), "kind": "h", "scale": scale})
        packed.append(_by_significance(halves))
    head = json.dumps({**header, "columns": columns}, separators=(",", ":"), allow_nan=False).encode()
    return zlib.compress(b"".join([len(head).to_bytes(4, "little"), head, *packed]))


def scale_of(record: Record) -> tuple[float, float]:
    """The credit that counts as 1 (``strengths`` of the terminal) and the strength with the full colour."""
    credit = np.abs(np.where(np.asarray(record.mask, dtype=bool), floats(record.credit), 0.0))
    largest = float(np.max(credit, initial=0.0, where=np.isfinite(credit)))
    advantage = abs(number(record.advantage))
    unit = advantage if advantage > 0 and math.isfinite(advantage) else largest
    return unit, max(FULL, largest / unit) if unit > 0 else FULL


def floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    """The numbers of a record's list, nan where the file has null.

    >>> floats([1.5, None])
    array([1.5, nan])
    """
    return np.asarray(values, dtype=np.float64)


def _check(record: Record) -> None:
    lists = {name: getattr(record, name) for name in _PER_TOKEN}
    for name, values in {**lists, **record.signals}.items():
        if len(values) != len(record.tokens):
            raise ValueError(f"{len(record.tokens)} tokens, but {len(values)} entries in {visible(name)}")
    for name, kind in (("step", int), ("group", int), ("method", str), ("prompt", str)):
        if not isinstance(getattr(record, name), kind):
            raise TypeError(f"{name}: {getattr(record, name)!r} is no {kind.__name__}")
    for name in ("ids", "mask", "turn", "segment"):
        array = np.asarray(getattr(record, name))
        if len(array) and array.dtype.kind not in "bi":
            raise TypeError(f"{name}: not whole numbers")


def _words(record: Record) -> tuple[list[tuple[str, int]], list[int]]:
    """The distinct tokens in the order of their first appearance, and which of them stands at each place."""
    places: dict[tuple[str, int], int] = {}
    word = [places.setdefault(pair, len(places)) for pair in zip(record.tokens, record.ids, strict=True)]
    return list(places), word


def _lines(text: str) -> str:
    """``visible``, but line breaks stay: the page breaks its lines there."""
    return "\n".join(map(visible, text.split("\n")))


_token = lru_cache(maxsize=1 << 16)(_lines)


def _name(text: str | None) -> str | None:
    return None if text is None else visible(text)


def _halves(values: Sequence[float | None]) -> tuple[NDArray[np.float16], float]:
    exact = floats(values)
    finite = np.isfinite(exact)
    scale = float(np.max(np.abs(exact), initial=0.0, where=finite)) or 1.0
    return np.where(finite, exact / scale, np.nan).astype("<f2"), scale


def _by_significance(values: NDArray[Any]) -> bytes:
    """The lowest byte of every number, then the next of every number, and so on."""
    return values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()
