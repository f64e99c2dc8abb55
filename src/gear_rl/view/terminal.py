"""One completion in the terminal: each token on the colour of its credit, segments between brackets.

Picture and page share the palette, ``visible_text`` text, and the ``runs`` of a record.
"""

import io
import math
import unicodedata
from collections.abc import Iterable
from itertools import groupby
from statistics import median_low
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.style import Style
from rich.text import Text

from gear_rl.records import Record
from gear_rl.view.group_notes import finite_values, group_note, is_weight_on_mistake
from gear_rl.view.turn_layout import by_turn, has_turns, last_user_text

BLUE, ORANGE = (0x56, 0xB4, 0xE9), (0xE6, 0x9F, 0x00)
"""Praise and blame: sky blue and orange of Okabe and Ito; black text reads on both."""

FULL = 2.0
"""The full colour is that of the largest strength, or of this one where all are smaller."""

CLEARLY = 0.25
"""A weight that differs from the completion's median by less is not written on its token."""

TOKEN = "token"
"""The style of a token's text has its index under this key."""
_TIMES = "\N{MULTIPLICATION SIGN}"
_GREY = Style(color="bright_black", italic=True)
_QUIET = Style(dim=True)
_BRACKET = Style(bold=True)


class Run(NamedTuple):
    """Tokens ``start`` to ``stop - 1``, neighbours of one segment, or a stretch of tool output."""

    start: int
    stop: int
    trained: bool
    onset: bool
    """The first token opens a segment of two tokens or more, and the completion has other segments."""
    bracketed: bool
    """Whether it is a segment of two tokens or more, in a completion with credit."""


def credit_text(record: Record, full: float | None = None) -> Text:
    """The completion with each token on the colour of its credit.

    Blue is positive, orange negative; the depth is the credit relative to the completion's advantage: white at 0,
    full at the largest weight or at 2, what is more, or at ``full``. GRPO's is 1. Tool output is grey between
    ``« »``.

    The plain text shows the same. A segment of two tokens or more is in ``⟦ ⟧`` with its weight behind it, its
    first token (the onset) bold and underlined. Another token has ``⟨weight⟩`` where that is ``CLEARLY`` off the
    median; signed credit where the advantage is 0.

    >>> print(credit_text(Record(
    ...     step=1, group=0, method="gear", prompt="7-3-5", tokens=["7-3", "=", "3", "!"], ids=[1, 2, 3, 4],
    ...     mask=[1, 1, 1, 0], turn=[0, 0, 0, -1], segment=[0, 1, 1, -1], reward=0.0, advantage=-1.0,
    ...     credit=[-0.6, -1.2, -1.2, 0.0], weight=[0.6, 1.2, 1.2, 0.0],
    ... )).plain)
    7-3⟨0.6⟩⟦=3⟧⟨1.2⟩«!»
    """
    record, turns = by_turn(record), has_turns(record)
    strength = strengths(record)
    full = full_strength(strength) if full is None else full
    values = _values(record)
    typical = _median_value(record)
    text = Text(overflow="fold")
    turn = -1
    for run in runs(record):
        if turns and not run.trained:
            text.append(" answer  ", _QUIET)
        elif turns and record.turn[run.start] != turn:
            turn = record.turn[run.start]
            text.append(f"{f'turn {turn + 1}':>7}  ", _QUIET)
        shown = [_break_lines(token) for token in record.tokens[run.start : run.stop]]
        line_ends = shown[-1].endswith("\n")
        shown[-1] = shown[-1].removesuffix("\n")  # what closes the run stands before the line break
        if run.bracketed:
            text.append("⟦", _BRACKET)
        if not run.trained:
            text.append(f"«{''.join(shown)}»", _GREY)
        for t in range(run.start, run.stop) if run.trained else ():
            onset = True if run.onset and t == run.start else None
            style = Style(bold=onset, underline=onset, meta={TOKEN: t})
            if strength[t] != 0:
                style += Style(color="#000000", bgcolor=shade(strength[t], full))
            text.append(shown[t - run.start], style)
        if run.bracketed:
            text.append("⟧", _BRACKET)
        if run.bracketed or (run.trained and not abs(values[run.start] - typical) < CLEARLY):
            text.append(_mark(values[run.start : run.stop], record), _QUIET)
        if line_ends:
            text.append("\n")
    return text


def rollout_panel(
    record: Record, prompts: bool = False, credit: RenderableType | None = None, legend: bool = True
) -> Panel:
    """One rollout in a frame: prompt, coloured completion, legend and reward.

    A long prompt loses its middle; ``prompts`` shows the whole prompts of student and teacher. ``credit``
    is shown in place of ``credit_text``; without ``legend`` the colours are explained elsewhere. Nothing in the
    record is read as markup.
    """
    reward = "none" if record.reward is None else f"{record.reward:g}"
    facts = f"reward {reward} · advantage {record.advantage:+.3g}"
    if record.fallback is not None:
        facts += f" · kept its GRPO advantage: {visible_text(record.fallback)}"
    if record.context is not None:
        facts += f" · teacher saw: {visible_text(record.context)}"
    if record.tools:
        failures = [f"{count} {kind}" for kind, count in record.tools.items() if kind != "calls"]
        facts += f" · {record.tools.get('calls', 0)} tool calls"
        facts += f", failed: {visible_text(', '.join(failures))}" if failures else ""
    if record.truncated:
        facts += " · cut off"
    note = group_note(record)
    facts += f" · {visible_text(note)}" if note else ""
    title = Text(f"{visible_text(record.method)} · step {record.step} · group {record.group}", "bold")
    prompt = [Text(shorten_text(visible_text(last_user_text(record.prompt)), 320), _QUIET, overflow="fold")]
    if prompts:
        prompt = [
            *_prompt_lines("student", record.prompt),
            Text(),
            *_prompt_lines("teacher", record.teacher_prompt),
        ]
    marks = [_legend(record)] if legend else []
    body = Group(*prompt, Text(), credit or credit_text(record), Text(), *marks, Text(facts))
    return Panel(body, title=title, title_align="left", border_style="bright_black")


def _prompt_lines(who: str, prompt: str | None) -> list[Text]:
    if prompt is None:
        return [Text(f"the {who} had no prompt of its own")]
    return [Text(f"prompt of the {who}:"), Text(visible_lines(prompt), _QUIET, overflow="fold")]


def recording_console(panels: Iterable[RenderableType], width: int) -> Console:
    """A console that has printed them, to be exported."""
    console = Console(
        file=io.StringIO(), record=True, width=width, color_system="truecolor", legacy_windows=False
    )
    for panel in panels:
        console.print(panel)
    return console


def choose(records: Iterable[Record]) -> Record:
    """The most instructive record, for a screen that shows one; ``ValueError`` where there is none.

    First those with an advantage and no fallback; then those whose mistake is known to have the largest weight;
    then those with an onset; among equals the widest spread of weights.

    >>> choose([])
    Traceback (most recent call last):
    ValueError: no records to choose from; has the run logged a step with completions yet?
    """
    best = max(records, key=instructiveness, default=None)
    if best is None:
        raise ValueError("no records to choose from; has the run logged a step with completions yet?")
    return best


def instructiveness(record: Record) -> tuple[bool, bool, bool, float]:
    """The key of ``choose``; larger is more instructive."""
    credited = math.isfinite(record.advantage) and record.advantage != 0 and record.fallback is None
    opens = any(run.onset for run in runs(record))
    weights = finite_values(record, record.weight)
    spread = max(weights) - min(weights) if weights else 0.0
    return credited, credited and is_weight_on_mistake(record) is True, credited and opens, spread


def visible_text(text: str) -> str:
    """``text`` with every control or invisible character shown, so that a terminal obeys none.

    Newline becomes ⏎, tab ⇥, other control characters their Unicode picture or their escape. Joiners stay.

    >>> visible_text("a\\n\\x1b[31m")
    'a⏎␛[31m'
    """
    return visible_lines(text).replace("\n", "⏎")


def visible_lines(text: str) -> str:
    """``visible_text``, but line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else _visible_character(c) for c in text)


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return "⇥" if character == "\t" else chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in "\u200c\u200d":
        return f"\\u{code:04x}"
    return character


def shorten_text(text: str, characters: int) -> str:
    """``text``, or its beginning and its longer end around an ellipsis, since a prompt ends with the question.

    >>> shorten_text("abcdefghij", 7)
    'a … hij'
    """
    if len(text) <= characters:
        return text
    head = max((characters - 3) // 3, 1)
    tail = characters - 3 - head
    return f"{text[:head]} … {text[len(text) - tail :]}"


def runs(record: Record) -> list[Run]:
    """The completion, cut where segment or mask changes.

    Tool output cuts a segment into several runs; only its first run is marked as the onset. A completion with one
    segment (GRPO, a fallback) has no onset, one without credit no brackets.
    """
    credited = any(_credits(record))
    num_segments = len({s for s, trained in zip(record.segment, record.mask, strict=True) if trained})
    pieces: list[Run] = []
    seen: set[int] = set()
    for (trained, segment), group in groupby(
        range(len(record.tokens)), key=lambda t: (bool(record.mask[t]), record.segment[t])
    ):
        t = list(group)
        bracketed = trained and len(t) > 1 and credited
        onset = bracketed and num_segments > 1 and segment not in seen
        pieces.append(Run(t[0], t[-1] + 1, trained, onset, bracketed))
        seen.add(segment)
    return pieces


def credit_unit(record: Record) -> float:
    """The credit that counts as 1: the advantage's size, or the largest credit where that is 0 or not finite."""
    size = abs(record.advantage)
    return size if 0 < size < math.inf else max(map(abs, _credits(record)), default=0.0)


def strengths(record: Record) -> list[float]:
    """The credit of each token in ``credit_unit``; 0 on tool output and where the credit is not finite.

    The sign is the credit's: -2 is twice GRPO's blame.
    """
    unit = credit_unit(record)
    return [c / unit if unit > 0 else 0.0 for c in _credits(record)]


def _credits(record: Record) -> list[float]:
    credits = zip(record.credit, record.mask, strict=True)
    return [credit if trained and math.isfinite(credit) else 0.0 for credit, trained in credits]


def full_strength(strength: Iterable[float]) -> float:
    """The strength that gets the full colour: the largest, and at least ``FULL``.

    >>> full_strength([0.5, -3.0]), full_strength([])
    (3.0, 2.0)
    """
    return max(FULL, max(map(abs, strength), default=0.0))


def shade(strength: float, full: float) -> str:
    """The colour of a strength: white at 0, blue at ``full``, orange at ``-full``.

    >>> shade(2.0, 2.0), shade(-1.0, 2.0), shade(0.0, 2.0)
    ('#56b4e9', '#f2cf80', '#ffffff')
    """
    part = min(abs(strength) / full, 1.0)
    end = BLUE if strength > 0 else ORANGE
    return "#" + "".join(f"{round(255 + (channel - 255) * part):02x}" for channel in end)


def _break_lines(token: str) -> str:
    """The token made visible, with a line break for its last newline."""
    head, newline, tail = token.rpartition("\n")
    return visible_text(head + newline) + newline + visible_text(tail)


def _values(record: Record) -> list[float]:
    return record.weight if record.advantage else record.credit


def _median_value(record: Record) -> float:
    """The median weight (or credit, at zero advantage) of the trained tokens."""
    return median_low(finite_values(record, _values(record)) or [math.nan])


def _mark(values: list[float], record: Record) -> str:
    written = [f"{v + 0.0:.1f}" if record.advantage else f"{v:+.2g}" for v in (min(values), max(values))]
    return f"⟨{'..'.join(dict.fromkeys(written))}⟩"


def _legend(record: Record) -> Text:
    text = Text(overflow="fold")
    full, unit = full_strength(strengths(record)), credit_unit(record)
    if unit > 0:
        text.append(f"blame {_TIMES}{full:.2g} ", _QUIET)
        for part in range(-4, 5):
            text.append(" " if part else "0", Style(color="#000000", bgcolor=shade(part * full / 4, full)))
        one = "GRPO's" if record.advantage else f"{unit:.2g}, the largest credit"
        text.append(f" praise {_TIMES}{full:.2g} ({_TIMES}1 is {one}) · ", _QUIET)
    pieces = runs(record)
    if any(run.bracketed for run in pieces):
        text.append("⟦⟧", _BRACKET)
        opens = any(run.onset for run in pieces)
        text.append(" segment" + (", its first token the onset" if opens else "") + " · ", _QUIET)
    if not all(run.trained for run in pieces):
        text.append("«tool output»", _GREY)
        text.append(" · ", _QUIET)
    what = "weight" if record.advantage else "credit"
    text.append(f"⟨{what}⟩, where none is written {_mark([_median_value(record)], record)}", _QUIET)
    return text
