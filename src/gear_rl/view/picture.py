"""The picture of completions: the terminal's panel as an SVG, GRPO's credit above the method's."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from gear_rl.files import replace_file
from gear_rl.records import Record
from gear_rl.view.terminal import (
    TOKEN,
    credit_text,
    full_strength,
    recording_console,
    rollout_panel,
    strengths,
    visible_text,
)
from gear_rl.view.turn_layout import by_turn, take_tokens

COLUMNS = 56
"""Characters on a line."""
SIGNALS = {
    "divergence": ("KL(student ‖ teacher)", "#404040"),
    "student_entropy": ("the student's entropy", "#9467bd"),
}
"""The signals that are drawn, with their names and colours."""
_CHAT = re.compile(r"<\|[^|<>]*\|>|</s>|<eos>")
_LEVELS = " ▁▂▃▄▅▆▇█"
_SVG = """\
<svg viewBox="{terminal_x} {terminal_y} {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" x="{terminal_x}" y="{terminal_y}" fill="white"/>
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""Rich's own format has a window's frame and loads a font from the network."""


class Signals:
    """GRPO's credit of a completion, and the method's, with bars above each line for the signals."""

    def __init__(self, record: Record) -> None:
        self.plain, self.record = by_turn(_grpo(record)), by_turn(record)
        self.method = visible_text(record.method)
        self.full = full_strength(strengths(record)) if record.advantage else None
        self.values = {name: _signal(self.record, name) for name in SIGNALS}
        self.largest = {name: max(values) for name, values in self.values.items() if any(values)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.full is not None:
            yield Text("GRPO: every token alike", style="dim")
            yield from credit_text(self.plain, self.full).wrap(console, options.max_width)
            yield Text()
            yield Text(self.method, style="dim")
        for line in credit_text(self.record).wrap(console, options.max_width):
            for name, largest in self.largest.items():
                bars = _bars(line, [value / largest for value in self.values[name]], SIGNALS[name][1])
                yield from [bars] if bars.plain.strip() else []
            yield line
        for name, largest in self.largest.items():
            meaning, colour = SIGNALS[name]
            yield Text.assemble(("▂▇▃ ", colour), f"{meaning}, up to {largest:.2g} nats", style="dim")


def _grpo(record: Record) -> Record:
    """The record with the completion's advantage on each trained token, and no segments."""
    weight = [float(trained) for trained in record.mask]
    segment = [t if trained else -1 for t, trained in enumerate(record.mask)]
    credit = [record.advantage * one for one in weight]
    return replace(record, weight=weight, segment=segment, credit=credit)


def _drop_chat_tokens(record: Record) -> Record:
    """The record without the template's tokens that end a completion or a turn; a ``mistake`` moves along."""
    kept = [t for t, token in enumerate(record.tokens) if not (record.mask[t] and _CHAT.fullmatch(token))]
    mistake, moved = getattr(record, "mistake", None), dict[str, Any]()
    if mistake is not None:
        moved["mistake"] = kept.index(mistake) if mistake in kept else None
    return replace(take_tokens(record, kept), **moved)


def _signal(record: Record, name: str) -> list[float]:
    """The signal of each token; 0 on tool output and where it is missing, negative or not finite."""
    values = record.signals.get(name) or [0.0] * len(record.tokens)
    return [
        v if trained and 0 < v < math.inf else 0.0 for v, trained in zip(values, record.mask, strict=True)
    ]


def _bars(line: Text, shares: Sequence[float], colour: str) -> Text:
    """A bar over each character of a token."""
    level = [" "] * len(line)
    for start, end, style in line.spans:
        if isinstance(style, Style) and TOKEN in style.meta:
            level[start:end] = _LEVELS[round(8 * shares[int(style.meta[TOKEN])])] * (end - start)
    return Text("".join(bar * cell_len(c) for bar, c in zip(level, line.plain, strict=True)), colour)


def save_picture(records: Iterable[Record], path: str | Path) -> None:
    """Draw completions as an SVG file: the panel of ``gear view``, with GRPO's credit above the method's.

    Bars show the signals that were recorded; the chat template's own tokens are left out.

    The same records give the same bytes. The directory is made. ``ValueError`` for another suffix.

    >>> save_picture([], "credit.png")
    Traceback (most recent call last):
    ValueError: credit.png: a picture of completions is an .svg; change the suffix
    """
    if Path(path).suffix.lower() != ".svg":
        raise ValueError(f"{path}: a picture of completions is an .svg; change the suffix")
    panels = (rollout_panel(record, credit=Signals(record)) for record in map(_drop_chat_tokens, records))
    console = recording_console(panels, COLUMNS + 4)
    text = console.export_svg(theme=DEFAULT_TERMINAL_THEME, code_format=_SVG, unique_id="gear")
    replace_file(Path(path), text.encode())
