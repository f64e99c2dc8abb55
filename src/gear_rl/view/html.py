"""Record files in, one page out that a browser opens without network: every completion, coloured by credit.

The page itself is in the folder ``viewer``; its ``data.js`` unpacks what ``pack`` packs.
"""

import base64
import hashlib
import json
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from numpy.typing import NDArray

from gear_rl.files import replace_file
from gear_rl.records import Record, read_records
from gear_rl.view.terminal import (
    BLUE,
    ORANGE,
    Run,
    credit_unit,
    full_strength,
    number,
    runs,
    shortened,
    strengths,
    visible,
    visible_lines,
)
from gear_rl.view.turns import by_turn, has_turns, last_user_text

HINT_CHARACTERS = 72
"""How much of a prompt the list of records shows."""

_SCRIPTS = ("data.js", "text.js", "strips.js", "list.js", "app.js")


class Laid(NamedTuple):
    """A record, how the page lays it out, and where in the completion each token of the layout stands."""

    record: Record
    shown: Record
    position: list[int]
    boxes: list[Run]
    """Segments of two tokens or more, in the order of the layout."""


def save_html(paths: Sequence[str | Path], out: str | Path, *, title: str = "") -> int:
    """Write the records of all files as one self-contained page; returns how many records it holds.

    The page needs no network and no other file, and a policy in it forbids it both. A browser lists the records
    from a light index and unpacks one when it is shown. ``title`` is the page's, by default the names of the
    files. The same files give the same bytes. The directory is made. ``ValueError`` as for ``read_records``, or
    where a file holds no record.

    >>> save_html([], "credit.html")
    Traceback (most recent call last):
    ValueError: no record file to show; name one or more, such as runs/demo/records.jsonl
    """
    if not paths:
        raise ValueError("no record file to show; name one or more, such as runs/demo/records.jsonl")
    names = labels([Path(path) for path in paths])
    methods: dict[tuple[str, int], int] = {}
    same: dict[bytes, int] = {}
    words: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    opened: list[list[float | None]] = []
    blocks: list[str] = []
    for place, path in enumerate(paths):
        before = len(rows)
        for record in read_records(path):
            laid = laid_out(record)
            # Two methods on the same completion: prompt and tokens are the same.
            what = hashlib.blake2b(json.dumps([record.prompt, record.ids]).encode(), digest_size=16).digest()
            method = methods.setdefault((record.method, place), len(methods))
            rows.append({"method": method, "same": same.setdefault(what, len(same)), **_listed(laid)})
            opened.append(_onsets(laid, words))
            blocks.append(_block(f"r{len(blocks)}", pack(laid)))
        if len(rows) == before:
            raise ValueError(f"{path}: no records in it; has the run logged a step with completions yet?")
    table = json.dumps({"words": list(words), "rows": opened}, separators=(",", ":"))
    blocks.append(_block("opened", zlib.compress(table.encode())))
    shown = [
        {"name": visible(method), "file": visible(names[place]) if len(names) > 1 else ""}
        for method, place in methods
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    page = _page({"methods": shown, "records": columns}, title or ", ".join(names), blocks)
    replace_file(Path(out), page.encode())
    return len(rows)


def labels(paths: Sequence[Path]) -> list[str]:
    """A short name for each file: its path from the folder that all share.

    >>> labels([Path("runs/gear/records.jsonl"), Path("runs/rlsd/records.jsonl")])
    ['gear/records.jsonl', 'rlsd/records.jsonl']
    """
    whole = [path.absolute() for path in paths]
    base = os.path.commonpath([path.parent for path in whole])
    return [path.relative_to(base).as_posix() for path in whole]


def laid_out(record: Record) -> Laid:
    """What ``by_turn`` makes of the record, but trained tokens keep their text: the layout is the page's work."""
    shown, position = by_turn(record), list(range(len(record.tokens)))
    if has_turns(record):
        position = [t for t in position if record.mask[t] or t == 0 or record.mask[t - 1]]
        for place, t in enumerate(position):
            trained = record.mask[t]
            shown.tokens[place] = record.tokens[t] if trained else shown.tokens[place].removesuffix("\n")
    shown = replace(shown, prompt=last_user_text(record.prompt))
    return Laid(record, shown, position, [run for run in runs(shown) if run.bracketed])


def pack(laid: Laid) -> bytes:
    """The record as zlib data: a length (4 bytes, little endian), that many bytes of JSON, then the columns.

    All text is ``visible`` but for line breaks. ``columns`` in the JSON names what follows: for kind ``i`` whole
    numbers of 4 bytes, for ``h`` half floats in units of ``scale``, the column's largest value, so that three
    digits hold whatever the unit; NaN where a value was not finite. The bytes of a column are sorted by
    significance, which compresses better.
    """
    record, shown, position, boxes = laid
    words: dict[tuple[str, int], int] = {}
    word = [words.setdefault(pair, len(words)) for pair in zip(shown.tokens, shown.ids, strict=True)]
    prompt, whole = visible_lines(shown.prompt), visible_lines(record.prompt)
    header: dict[str, Any] = {
        "length": len(shown.tokens),
        "prompt": prompt,
        "whole": whole if whole != prompt else "",
        "words": [visible_lines(text) for text, _ in words],
        "ids": [token_id for _, token_id in words],
        "boxes": [(run.start, run.stop, int(run.onset)) for run in boxes],
        "turns": has_turns(record),
        "unit": credit_unit(record),
        "full": full_strength(strengths(record)),
        "fallback": record.fallback and visible(record.fallback),
        "context": record.context and visible(record.context),
        "teacher": visible_lines(record.teacher_prompt or ""),
        "tools": {visible(kind): count for kind, count in record.tools.items()},
        "truncated": record.truncated,
    }
    columns: list[dict[str, Any]] = []
    packed: list[bytes] = []
    whole_numbers = {"position": position, "word": word, "mask": shown.mask, "turn": shown.turn}
    for name, values in {**whole_numbers, "segment": shown.segment}.items():
        columns.append({"name": name, "kind": "i"})
        packed.append(_by_significance(np.asarray(values, dtype="<i4")))
    for name, values in {"credit": shown.credit, "weight": shown.weight, **shown.signals}.items():
        exact = _floats(values)
        finite = np.isfinite(exact)
        scale = float(np.max(np.abs(exact), initial=0.0, where=finite)) or 1.0
        columns.append({"name": visible(name), "kind": "h", "scale": scale})
        packed.append(_by_significance(np.where(finite, exact / scale, np.nan).astype("<f2")))
    head = json.dumps({**header, "columns": columns}, separators=(",", ":"), allow_nan=False).encode()
    return zlib.compress(b"".join([len(head).to_bytes(4, "little"), head, *packed]))


def _listed(laid: Laid) -> dict[str, Any]:
    """What the list shows of a record before it is unpacked."""
    record = laid.record
    weight = _floats(record.weight)[np.asarray(record.mask, dtype=bool)]
    weight = weight[np.isfinite(weight)]
    return {
        "step": record.step,
        "group": record.group,
        "reward": _finite(record.reward),
        "advantage": _finite(record.advantage),
        "tokens": len(record.tokens),
        "segments": len({s for s, trained in zip(record.segment, record.mask, strict=True) if trained}),
        "spread": _finite(float(np.ptp(weight)) if len(weight) else 0.0),
        "hint": shortened(visible(" ".join(laid.shown.prompt.split())), HINT_CHARACTERS),
    }


def _onsets(laid: Laid, words: dict[str, int]) -> list[float | None]:
    """Three numbers per onset: its token in ``words``, its divergence in nats, and that over the largest."""
    shown = laid.shown
    divergence = shown.signals.get("divergence")
    trained = _floats(divergence)[np.asarray(shown.mask, dtype=bool)] if divergence else _floats([])
    largest = float(np.max(trained, initial=0.0, where=np.isfinite(trained)))
    row: list[float | None] = []
    for run in laid.boxes:
        if run.onset:
            nats = _finite(divergence[run.start]) if divergence else None
            part = None if nats is None or largest <= 0 else round(nats / largest, 3)
            row += [words.setdefault(visible(shown.tokens[run.start]), len(words)), nats, part]
    return row


def _page(index: dict[str, Any], title: str, blocks: Sequence[str]) -> str:
    folder = files("gear_rl.view") / "viewer"
    script, template = (
        "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
        for names in (_SCRIPTS, ("page.html.jinja",))
    )
    praise, blame = ("#" + bytes(colour).hex() for colour in (BLUE, ORANGE))
    style = f":root{{--blue:{praise};--orange:{blame}}}\n"
    style += (folder / "viewer.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(template).render(
        title=visible(title),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        index=index,
        data="".join(blocks),
    )


def _hash(text: str) -> str:
    """What the page's policy lets run: this very text, and nothing that a record smuggled in."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _block(name: str, data: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{base64.b64encode(data).decode()}</script>\n'


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    """The numbers of a record's list, nan where the file has null."""
    return np.asarray(values, dtype=np.float64)


def _by_significance(values: NDArray[Any]) -> bytes:
    """The lowest byte of every number, then the next of every number, and so on."""
    return values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()


def _finite(value: float | None) -> float | None:
    """The number to six digits; None where it is none that JSON can hold."""
    exact = number(value)
    return float(f"{exact:.6g}") if math.isfinite(exact) else None
