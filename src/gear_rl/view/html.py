"""Record files in, one page out that a browser opens without network: every completion, coloured by credit.

Knows no method; what it shows is in the records. How a record is packed is in ``packed``, the page itself in the
folder ``viewer``.
"""

import base64
import hashlib
import json
import math
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from gear_rl.files import replacing
from gear_rl.records import Record, read_records
from gear_rl.view.packed import Laid, floats, laid_out, pack
from gear_rl.view.terminal import BLUE, ORANGE, number, shortened, visible

HINT_CHARACTERS = 72
"""How much of a prompt the list of records shows."""

_SCRIPTS = ("data.js", "text.js", "strips.js", "list.js", "app.js")
_DATA = "<!--data-->"
_CHUNK = 1 << 20


class _Method(NamedTuple):
    """What the page separates: a method's name, and the file of its records."""

    name: str
    file: int


@dataclass(kw_only=True)
class _Index:
    """What the page knows of every record before it unpacks one: columns, one entry per record."""

    methods: dict[_Method, int] = field(default_factory=dict[_Method, int])
    same: dict[bytes, int] = field(default_factory=dict[bytes, int])
    columns: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def add(self, laid: Laid, file: int) -> None:
        record = laid.record
        weight = floats(record.weight)[np.asarray(record.mask, dtype=bool)]
        weight = weight[np.isfinite(weight)]
        # Two methods on the same completion: prompt and tokens are the same.
        what = json.dumps([record.prompt, record.ids]).encode()
        row: dict[str, Any] = {
            "method": self.methods.setdefault(_Method(record.method, file), len(self.methods)),
            "step": record.step,
            "group": record.group,
            "reward": _finite(record.reward),
            "advantage": _finite(record.advantage),
            "tokens": len(record.tokens),
            "segments": len({s for s, trained in zip(record.segment, record.mask, strict=True) if trained}),
            "spread": _finite(float(np.ptp(weight)) if len(weight) else 0.0),
            "same": self.same.setdefault(hashlib.blake2b(what, digest_size=16).digest(), len(self.same)),
            "hint": shortened(visible(" ".join(laid.shown.prompt.split())), HINT_CHARACTERS),
        }
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)


@dataclass(kw_only=True)
class _Onsets:
    """Which tokens opened segments, record by record, for the table of the most frequent ones."""

    words: dict[str, int] = field(default_factory=dict[str, int])
    rows: list[list[float | None]] = field(default_factory=list[list[float | None]])

    def add(self, laid: Laid) -> None:
        """Three numbers per onset: its token, its divergence in nats, and that as a part of the largest."""
        shown = laid.shown
        divergence = shown.signals.get("divergence")
        trained = floats(divergence)[np.asarray(shown.mask, dtype=bool)] if divergence else floats([])
        largest = float(np.max(trained, initial=0.0, where=np.isfinite(trained)))
        row: list[float | None] = []
        for run in laid.boxes:
            if run.onset:
                word = self.words.setdefault(visible(shown.tokens[run.start]), len(self.words))
                nats = _finite(divergence[run.start]) if divergence else None
                part = None if nats is None or largest <= 0 else round(nats / largest, 3)
                row += [word, nats, part]
        self.rows.append(row)


def save_html(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str = "",
    advance: Callable[[], None] | None = None,
) -> int:
    """Write the records of all files as one self-contained page; returns how many records it holds.

    The page needs no network and no other file, and a policy in it forbids it both. A browser lists the records
    from a light index and unpacks one when it is shown, so a large page opens as fast as a small one.
    ``advance`` is called after every record; ``title`` is the page's, by default the names of the files.

    Records stream through: beside one record only the index is in memory, and the page is put in place at once.
    The same files give the same bytes. The directory is made. ``ValueError`` as for ``read_records``, where a
    file holds no record or a record's lists differ in length.

    >>> save_html([], "credit.html")
    Traceback (most recent call last):
    ValueError: no record file to show; name one or more, such as runs/demo/records.jsonl
    """
    if not paths:
        raise ValueError("no record file to show; name one or more, such as runs/demo/records.jsonl")
    paths, out = [Path(path) for path in paths], Path(out)
    index, onsets = _Index(), _Onsets()
    # The index stands before the data, so that the page can list the records while the rest still loads.
    with replacing(out) as page, tempfile.TemporaryFile(dir=None if _is_special(out) else out.parent) as data:
        total = 0
        for place, path in enumerate(paths):
            before = total
            for record in read_records(path):
                _block(
                    data,
                    f"r{total}",
                    _packed(record, index, onsets, place, f"{path}, record {total - before + 1}"),
                )
                total += 1
                if advance is not None:
                    advance()
            if total == before:
                raise ValueError(f"{path}: no records in it; has the run logged a step with completions yet?")
        table = json.dumps({"words": list(onsets.words), "rows": onsets.rows}, separators=(",", ":"))
        _block(data, "opened", zlib.compress(table.encode()))
        head, tail = _page(index, labels(paths), title).split(_DATA)
        page.write(head.encode())
        data.seek(0)
        while chunk := data.read(_CHUNK):
            page.write(chunk)
        page.write(tail.encode())
    return total


def _is_special(path: Path) -> bool:
    """A terminal or a pipe: beside it nothing can be written."""
    return path.exists() and not path.is_file()


def labels(paths: Sequence[Path]) -> list[str]:
    """A short name for each file: as few of the last parts of its path as make it unique.

    >>> labels([Path("runs/gear/records.jsonl"), Path("runs/rlsd/records.jsonl")])
    ['gear/records.jsonl', 'rlsd/records.jsonl']
    """
    most = max((len(path.parts) for path in paths), default=1)
    for parts in range(1, most + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def _packed(record: Record, index: _Index, onsets: _Onsets, file: int, place: str) -> bytes:
    try:
        laid = laid_out(record)
        index.add(laid, file)
        onsets.add(laid)
        return pack(laid)
    except (
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as error:  # a text among numbers, and its like
        raise ValueError(f"{place}: not a credit record ({error}); make the file again") from None


def _page(index: _Index, names: Sequence[str], title: str) -> str:
    """The page with a mark where the data goes."""
    folder = files("gear_rl.view") / "viewer"
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    praise, blame = ("#" + "".join(f"{channel:02x}" for channel in colour) for colour in (BLUE, ORANGE))
    style = f":root{{--blue:{praise};--orange:{blame}}}\n" + (folder / "viewer.css").read_text(
        encoding="utf-8"
    )
    several = len(names) > 1
    methods = [
        {"name": visible(method.name), "file": visible(names[method.file]) if several else ""}
        for method in index.methods
    ]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    template = environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        title=visible(title or ", ".join(names)),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        index={"methods": methods, "records": index.columns},
        data=_DATA,
    )


def _hash(text: str) -> str:
    """What the page's policy lets run: this very text, and nothing that a record smuggled in."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _block(file: Any, name: str, data: bytes) -> None:
    file.write(b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), base64.b64encode(data)))


def _finite(value: float | None) -> float | None:
    """The number to six digits; None where it is none that JSON can hold."""
    exact = number(value)
    return float(f"{exact:.6g}") if math.isfinite(exact) else None
