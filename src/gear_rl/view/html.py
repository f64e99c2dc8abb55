"""Record files in, one page out that a browser opens without network: every completion, coloured by credit.

The page itself is in the folder ``viewer``; its ``data.js`` unpacks the blocks.
"""

import base64
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from gear_rl.files import replace_file
from gear_rl.records import Record, read_records
from gear_rl.view.group_notes import (
    Judged,
    finite_values,
    group_note,
    is_weight_on_mistake,
    judge_groups,
    share_note,
)
from gear_rl.view.terminal import (
    BLUE,
    ORANGE,
    Run,
    credit_unit,
    full_strength,
    instructiveness,
    runs,
    shorten_text,
    strengths,
    visible_lines,
    visible_text,
)
from gear_rl.view.turn_layout import has_turns, join_answers, last_user_text

_SCRIPTS = ("data.js", "text.js", "strips.js", "list.js", "app.js")


def save_html(paths: Sequence[str | Path], out: str | Path, *, title: str = "") -> int:
    """Write the records of all files as one self-contained page; returns the number of records.

    The page needs no network and no other file, and its content security policy forbids both. It opens on an
    instructive record; a browser lists all from a light index and unpacks the one that is shown. ``title``
    defaults to the names of the files. The same files give the same bytes. The directory is made. ``ValueError``
    as for ``read_records``, or where a file holds no record.
    """
    absolute = [Path(path).absolute() for path in paths]
    base = os.path.commonpath([path.parent for path in absolute])
    names = [path.relative_to(base).as_posix() for path in absolute]
    methods: dict[tuple[str, str], int] = {}
    same: dict[tuple[str, tuple[int, ...]], int] = {}
    words: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    onsets: list[list[float | None]] = []
    blocks: list[str] = []
    found: list[bool | None] = []
    texts: list[str] = []
    first, best, opened = 0, (False, False, False, -1.0), ""
    for name, path in zip(names, paths, strict=True):
        before = len(rows)
        for record in judge_groups(read_records(path)):
            found.append(is_weight_on_mistake(record))
            if instructiveness(record) > best:
                first, best, opened = len(rows), instructiveness(record), _reason(record)
            shown, position = join_answers(record)
            boxes = [run for run in runs(shown) if run.bracketed]
            method = methods.setdefault((record.method, name if len(names) > 1 else ""), len(methods))
            # Two methods on the same completion: prompt and tokens are the same.
            completion = same.setdefault((record.prompt, tuple(record.ids)), len(same))
            rows.append({"method": method, "same": completion, **_list_entry(record)})
            texts.append(visible_lines("\n".join((last_user_text(record.prompt), "".join(shown.tokens)))))
            onsets.append(_onsets(shown, boxes, words))
            blocks.append(_block(f"r{len(blocks)}", _content(record, shown, position, boxes)))
        if len(rows) == before:
            raise ValueError(f"{path}: no records in it; has the run logged a step with completions yet?")
    blocks.append(_block("opened", {"words": list(words), "rows": onsets}))
    blocks.append(_block("texts", {"rows": texts}))
    index = {
        "first": first,
        "note": " ".join(filter(None, (share_note(found), opened))),
        "methods": [{"name": visible_text(method), "file": visible_text(name)} for method, name in methods],
        "records": {name: [row[name] for row in rows] for name in rows[0]},
    }
    heading = _heading(dict.fromkeys(method for method, _ in methods), absolute, title or ", ".join(names))
    replace_file(Path(out), _page(index, heading, "".join(blocks)).encode())
    return len(rows)


def _heading(methods: Iterable[str], paths: Iterable[Path], title: str) -> str:
    """Methods, the models that the runs' settings name, and the title."""
    models: dict[str, None] = {}
    for path in paths:
        settings = path.parent / "gear.yaml"
        if settings.is_file():
            named = re.search(r"^model: *(.+)$", settings.read_text(encoding="utf-8"), re.MULTILINE)
            models |= {named[1].strip("'\""): None} if named else {}
    return " · ".join(filter(None, (", ".join(methods), ", ".join(models), title)))


def _reason(record: Record) -> str:
    """Why the page opens on this record."""
    return {
        True: "The page opens on one of these.",
        False: "The page opens on one of the others.",
        None: "The page opens on the widest spread of weights; where the mistake is, is not known.",
    }[is_weight_on_mistake(record)]


def _content(record: Record, shown: Record, position: list[int], boxes: list[Run]) -> dict[str, Any]:
    """What the page shows of a record; all text is ``visible_text`` but for line breaks, null is NaN."""
    words: dict[tuple[str, int], int] = {}
    word = [words.setdefault(pair, len(words)) for pair in zip(shown.tokens, shown.ids, strict=True)]
    prompt, whole = visible_lines(last_user_text(record.prompt)), visible_lines(record.prompt)
    return {
        "length": len(shown.tokens),
        "prompt": prompt,
        "whole": whole if whole != prompt else "",
        "words": [visible_lines(text) for text, _ in words],
        "ids": [token_id for _, token_id in words],
        "boxes": [(run.start, run.stop, int(run.onset)) for run in boxes],
        "turns": has_turns(record),
        "unit": credit_unit(record),
        "full": full_strength(strengths(record)),
        "fallback": record.fallback and visible_text(record.fallback),
        "context": record.context and visible_text(record.context),
        "teacher": visible_lines(record.teacher_prompt or ""),
        "tools": {visible_text(kind): count for kind, count in record.tools.items()},
        "truncated": record.truncated,
        "note": visible_text(group_note(record)),
        "position": position,
        **_first_difference(record, position),
        "word": word,
        "mask": shown.mask,
        "turn": shown.turn,
        "segment": shown.segment,
        "credit": [_short_number(value, 3) for value in shown.credit],
        "weight": [_short_number(value, 3) for value in shown.weight],
        "signals": {
            visible_text(name): [_short_number(value, 3) for value in values]
            for name, values in shown.signals.items()
        },
    }


def _first_difference(record: Record, position: list[int]) -> dict[str, Any]:
    """Where the completion first differs from its group's solution, and that solution in three pieces there."""
    if not isinstance(record, Judged) or record.mistake is None or record.mistake not in position:
        return {"mistake": None, "solution": None}
    at, tokens = record.mistake, record.solution
    pieces = ("".join(tokens[:at]), "".join(tokens[at : at + 1]), "".join(tokens[at + 1 :]))
    return {"mistake": position.index(at), "solution": [visible_lines(piece) for piece in pieces]}


def _list_entry(record: Record) -> dict[str, Any]:
    """What the list shows of a record before it is unpacked."""
    weights = finite_values(record, record.weight)
    return {
        "step": record.step,
        "group": record.group,
        "reward": None if record.reward is None else _short_number(record.reward),
        "advantage": _short_number(record.advantage),
        "tokens": len(record.tokens),
        "segments": len({s for s, trained in zip(record.segment, record.mask, strict=True) if trained}),
        "spread": _short_number(max(weights) - min(weights) if weights else 0.0),
        "hint": shorten_text(visible_text(" ".join(last_user_text(record.prompt).split())), 72),
    }


def _onsets(shown: Record, boxes: Iterable[Run], words: dict[str, int]) -> list[float | None]:
    """Three numbers per onset: its token in ``words``, its divergence in nats, and that over the largest."""
    divergence = shown.signals.get("divergence")
    largest = max(finite_values(shown, divergence), default=0.0) if divergence else 0.0
    row: list[float | None] = []
    for run in boxes:
        if run.onset:
            nats = _short_number(divergence[run.start]) if divergence else None
            part = None if nats is None or largest <= 0 else round(nats / largest, 3)
            row += [words.setdefault(visible_text(shown.tokens[run.start]), len(words)), nats, part]
    return row


def _page(index: dict[str, Any], title: str, data: str) -> str:
    folder = files("gear_rl.view") / "viewer"
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    praise, blame = ("#" + bytes(colour).hex() for colour in (BLUE, ORANGE))
    style = f":root{{--blue:{praise};--orange:{blame}}}\n"
    style += (folder / "viewer.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8")).render(
        title=visible_text(title),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        index=index,
        data=data,
    )


def _hash(text: str) -> str:
    """The only script or style that the page's policy allows: this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _block(name: str, content: dict[str, Any]) -> str:
    packed = zlib.compress(json.dumps(content, separators=(",", ":"), allow_nan=False).encode())
    return f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>\n'


def _short_number(value: float, digits: int = 6) -> float | None:
    """The number to so many digits; None where JSON cannot hold it."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
