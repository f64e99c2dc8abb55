"""The picture of a method: completions as rows of tokens on the colour of their credit, segments outlined."""

import io
import math
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from gear_rl.files import replace_file
from gear_rl.records import Record
from gear_rl.view.groups import group_note
from gear_rl.view.terminal import full_strength, runs, shade, shortened, strengths, visible
from gear_rl.view.turns import by_turn, last_user_text

COLUMNS = 90
"""Characters on a line."""
MOST_LINES, MOST_RECORDS = 12, 3
"""A completion of more lines shows those around its strongest credit; more records are refused."""

# Lengths in points; DejaVu Sans Mono, which comes with matplotlib, advances 0.602 em per character.
_SIZE = 9.5
_CHARACTER = 0.602 * _SIZE
_LEFT, _RIGHT = 14.0, 14.0
_BOX, _STRIP, _ONSET, _LABEL, _GAP = 15.0, 20.0, 8.0, 11.0, 5.0
_WIDTH = _LEFT + COLUMNS * _CHARACTER + _RIGHT
_TEXT, _QUIET, _TOOL, _KL, _ENTROPY = "#1a1a1a", "#6b6b6b", "#e9e9e9", "#404040", "#9467bd"
_TRIANGLE: dict[str, Any] = {"marker": "v", "ms": 4.5, "mec": "none", "color": _TEXT}
_MONOSPACED: dict[str, Any] = {"family": "DejaVu Sans Mono", "va": "center_baseline"}
_TIMES = "\N{MULTIPLICATION SIGN}"


class _Placed(NamedTuple):
    """A token as it is drawn: its index in the completion, its text, the column where it begins."""

    t: int
    text: str
    column: int


def save_picture(records: Sequence[Record], path: str | Path) -> None:
    """Draw one to three completions as an SVG or PNG file, by the suffix of ``path``.

    Each token is on the colour of its credit in units of the completion's advantage: blue praise, orange blame,
    white none. Above it are a bar for the divergence and a line for the student's entropy, where the record has
    them, each up to its largest value in the picture. A segment of two tokens or more is outlined, its weight
    below, a triangle on its onset. Tool output is grey. Lines wrap after ``COLUMNS`` characters.

    The same records give the same bytes. The directory is made. ``ValueError`` for another number of records or
    another suffix.

    >>> save_picture([], "credit.svg")
    Traceback (most recent call last):
    ValueError: a picture shows 1 to 3 records, not 0; choose first
    """
    if not 1 <= len(records) <= MOST_RECORDS:
        raise ValueError(f"a picture shows 1 to {MOST_RECORDS} records, not {len(records)}; choose first")
    with figure_style():
        notes = [visible(group_note(record)) for record in records]
        write_figure(_figure([by_turn(record) for record in records], notes), path)


@contextmanager
def figure_style() -> Generator[None]:
    """matplotlib's own defaults instead of the user's, and the same bytes in every run."""
    from matplotlib import style

    files = {"svg.hashsalt": "gear", "svg.fonttype": "path"}
    looks = {"font.family": "DejaVu Sans", "figure.facecolor": "white", "text.color": _TEXT}
    style_context = cast(Any, style).context(["default", {**files, **looks}])
    # A missing glyph is drawn as a box, without a warning.
    with warnings.catch_warnings(action="ignore", category=UserWarning), style_context:
        yield


def write_figure(figure: Any, path: str | Path) -> None:
    """Write the figure without date or program name; ``ValueError`` if ``path`` is no .svg or .png.

    >>> write_figure(None, "credit.pdf")
    Traceback (most recent call last):
    ValueError: credit.pdf: only .svg and .png can be drawn; change the suffix
    """
    kind = Path(path).suffix.lower()[1:]
    if kind not in ("svg", "png"):
        raise ValueError(f"{path}: only .svg and .png can be drawn; change the suffix")
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=160, metadata=metadata)
    replace_file(Path(path), content.getvalue())


def svg_of(figure: Any, **options: Any) -> str:
    """The figure as an SVG element for a page, without date or program name."""
    content = io.StringIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None}, **options)
    text = content.getvalue()
    return text[text.index("<svg") :]


def lines_of(record: Record) -> list[list[_Placed]]:
    """The tokens in lines of at most ``COLUMNS`` characters; a newline in a token ends its line.

    A token longer than a line loses its end.
    """
    lines: list[list[_Placed]] = [[]]
    column = 0
    for t, token in enumerate(record.tokens):
        text = visible(token)
        text = text if len(text) <= COLUMNS else text[: COLUMNS - 1] + "…"
        if column + len(text) > COLUMNS:
            lines.append([])
            column = 0
        lines[-1].append(_Placed(t, text, column))
        column += len(text)
        if "\n" in token:
            lines.append([])
            column = 0
    return [line for line in lines if line]


def _figure(records: Sequence[Record], notes: Sequence[str]) -> Any:
    from matplotlib.figure import Figure

    full = full_strength(s for record in records for s in strengths(record))
    tallest = {name: _tallest(records, name) for name in ("divergence", "student_entropy")}
    shown = [_most_telling(record, lines_of(record)) for record in records]
    strips = [_STRIP + 2 if any(_tallest([record], name) for name in tallest) else 0.0 for record in records]
    row = _ONSET + _BOX + _LABEL + _GAP
    height = 64 + sum(
        34 + len(lines) * (strip + row) for (lines, _), strip in zip(shown, strips, strict=True)
    )
    figure: Any = Figure(figsize=(_WIDTH / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    y = 8.0
    for place, (record, (lines, omitted), strip) in enumerate(zip(records, shown, strips, strict=True)):
        y = _header(axes, y, record, notes[place], omitted)
        for line in lines:
            if strip:
                _signals(axes, y + _STRIP, record, line, tallest)
            _tokens(axes, y + strip + _ONSET, record, line, full, place)
            _segments(axes, y + strip + _ONSET, record, line, place)
            y += strip + row
        y += 6
    _legend(axes, y + 8, records, tallest, full)
    return figure


def _signal(record: Record, name: str) -> list[float]:
    """The signal of each token; 0 on tool output and where it is missing, negative or not finite."""
    values = record.signals.get(name) or [0.0] * len(record.tokens)
    return [v if trained and v > 0 else 0.0 for v, trained in zip(values, record.mask, strict=True)]


def _tallest(records: Sequence[Record], name: str) -> float:
    return max((value for record in records for value in _signal(record, name)), default=0.0)


def _most_telling(record: Record, lines: list[list[_Placed]]) -> tuple[list[list[_Placed]], int]:
    """The lines that fit, and how many tokens they leave out."""
    strength = strengths(record)
    peak = max(range(len(lines)), key=lambda n: max(abs(strength[token.t]) for token in lines[n]), default=0)
    first = max(0, min(peak - MOST_LINES // 4, len(lines) - MOST_LINES))
    kept = lines[first : first + MOST_LINES]
    return kept, len(record.tokens) - sum(map(len, kept))


def _write(axes: Any, x: float, y: float, text: str, size: float = 7.5, **more: Any) -> None:
    axes.text(x, y, text, fontsize=size, parse_math=False, **{"va": "center", **more})


def _header(axes: Any, y: float, record: Record, note: str, omitted: int) -> float:
    reward = "no reward" if record.reward is None else f"reward {record.reward:g}"
    facts = f"{reward}, advantage {record.advantage:+.2f}".replace("-", "\N{MINUS SIGN}")
    facts += f"  ·  {visible(record.method)}, step {record.step}"
    if record.fallback is not None:
        facts += f", GRPO's advantage kept: {visible(record.fallback)}"
    facts += f"  ·  {note}" if note else ""
    if omitted:
        facts += f"  ·  {omitted} of {len(record.tokens)} tokens not shown"
    prompt = shortened(visible(last_user_text(record.prompt)), COLUMNS + 10)
    _write(axes, _LEFT, y + 6, prompt, color=_QUIET, size=8.0)
    _write(axes, _LEFT, y + 19, facts, size=8.5, weight="bold")
    return y + 28


def _x(column: int) -> float:
    return _LEFT + column * _CHARACTER


def _signals(axes: Any, base: float, record: Record, line: list[_Placed], tallest: dict[str, float]) -> None:
    divergence, entropy = (
        [_STRIP / (tall or 1.0) * value for value in _signal(record, name)] for name, tall in tallest.items()
    )
    axes.plot([_x(0), _x(line[-1].column + len(line[-1].text))], [base, base], color="#bbbbbb", lw=0.5)
    x, y = list[float](), list[float]()
    for t, text, column in line:
        if divergence[t] > 0:
            _bar(axes, _x(column) + 0.5, base, len(text) * _CHARACTER - 1, divergence[t], fc=_KL)
        x += [_x(column), _x(column + len(text))]
        y += [base - entropy[t] if record.mask[t] else math.nan] * 2  # NaN interrupts the line at tool output
    if record.signals.get("student_entropy"):
        axes.plot(x, y, color=_ENTROPY, lw=0.8)


def _tokens(axes: Any, y: float, record: Record, line: list[_Placed], full: float, place: int) -> None:
    strength = strengths(record)
    for t, text, column in line:
        fill, ink = (shade(strength[t], full), _TEXT) if record.mask[t] else (_TOOL, _QUIET)
        wide = len(text) * _CHARACTER
        _bar(axes, _x(column), y + _BOX, wide, _BOX, fc=fill, ec="white", lw=0.7, gid=f"token-{place}-{t}")
        _write(axes, _x(column), y + _BOX / 2, text, _SIZE, color=ink, **_MONOSPACED)


def _segments(axes: Any, y: float, record: Record, line: list[_Placed], place: int) -> None:
    """Outlines of the segments on this line; a segment that continues on another line is open there."""
    from matplotlib.collections import LineCollection

    first, last = line[0].t, line[-1].t
    at = {token.t: token for token in line}
    free = 0.0  # no weight has been written at or right of it
    for run in runs(record):
        if not run.bracketed or run.stop <= first or run.start > last:
            continue
        begins, ends = run.start >= first, run.stop - 1 <= last
        left, end = _x(at[max(run.start, first)].column), at[min(run.stop - 1, last)]
        right = _x(end.column + len(end.text))
        sides = [[(left, y), (right, y)], [(left, y + _BOX), (right, y + _BOX)]]
        sides += [[(x, y), (x, y + _BOX)] for x, closed in ((left, begins), (right, ends)) if closed]
        outline = LineCollection(sides, colors=_TEXT, linewidths=1.3, capstyle="projecting", zorder=3)
        outline.set_gid(f"segment-{place}-{run.start}-{first}")
        axes.add_collection(outline, autolim=False)
        if not begins:
            continue
        if run.onset:
            middle = left + len(at[run.start].text) * _CHARACTER / 2
            axes.plot([middle], [y - _ONSET / 2], gid=f"onset-{place}-{run.start}", **_TRIANGLE)
        middle, weight = (left + right) / 2, f"{_TIMES}{record.weight[run.start]:.1f}"
        if not record.advantage:
            weight = f"{record.credit[run.start]:+.2g}"
        half = 2.7 * len(weight) + 1
        x = max(middle, free + half)
        if x - middle <= half:  # further right it would seem to belong to the next segment
            _write(axes, x, y + _BOX + 6, weight, ha="center", weight="bold")
            free = x + half


def _legend(axes: Any, y: float, records: Sequence[Record], tallest: dict[str, float], full: float) -> None:
    """What the marks mean."""
    units = {"as in GRPO" if record.advantage else "the largest credit" for record in records}
    _colour_bar(axes, y, full, f"{_TIMES}1 {' or '.join(sorted(units))}")
    every = [run for record in records for run in runs(record)]
    if any(not run.trained for run in every):
        left = _WIDTH - _RIGHT - 150
        _bar(axes, left, y + 38, 14.0, 9.0, fc=_TOOL)
        _write(axes, left + 19, y + 34, "tool output, not trained")
    divergence, entropy = (f"up to {tall:.2g} nats" for tall in tallest.values())
    if tallest["divergence"] > 0:
        for n, tall in enumerate((3.0, 10.0, 4.0)):
            _bar(axes, _LEFT + 5 * n, y + 4, 4.0, tall, fc=_KL)
        _write(axes, _LEFT + 22, y, f"KL(student ‖ teacher), {divergence}: how far the two disagree")
        y += 13
    if any(run.onset for run in every):
        axes.plot([_LEFT + 7], [y], **_TRIANGLE)
        _write(axes, _LEFT + 22, y, "onset: opens a segment, every token of which takes the onset's weight")
        y += 13
    if tallest["student_entropy"] > 0:
        x = [_LEFT, _LEFT + 7, _LEFT + 7, _LEFT + 14]
        axes.plot(x, [y + 3, y + 3, y - 3, y - 3], color=_ENTROPY, lw=0.8)
        _write(axes, _LEFT + 22, y, f"the student's entropy, {entropy}: uncertain again, a segment can end")


def _colour_bar(axes: Any, y: float, full: float, unit: str) -> None:
    swatches, width = 9, 11.0
    left = _WIDTH - _RIGHT - 32 - swatches * width
    for n in range(swatches):
        strength = (2 * n / (swatches - 1) - 1) * full
        _bar(axes, left + n * width, y + 5, width, 10.0, fc=shade(strength, full), ec="#cccccc", lw=0.4)
        if n % 2 == 0:
            label = f"{_TIMES}{abs(strength):.2g}"
            _write(axes, left + (n + 0.5) * width, y + 11, label, 6.5, ha="center", color=_QUIET)
    _write(axes, left - 4, y, "blame", ha="right")
    _write(axes, left + swatches * width + 4, y, "praise")
    meaning = f"white: no credit; full colour from {_TIMES}{full:.2g} on; {unit}"
    _write(axes, _WIDTH - _RIGHT, y + 21, meaning, 6.5, ha="right", color=_QUIET)


def _bar(
    axes: Any, left: float, base: float, width: float, tall: float, fc: str, lw: float = 0.0, **look: Any
) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, base - tall), width, tall, fc=fc, lw=lw, **look))
