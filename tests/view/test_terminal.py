"""The terminal shows the right tokens coloured, bracketed and marked, and obeys nothing in a record."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from gear_rl.records import Record
from gear_rl.view.terminal import credit_text, rollout_panel, runs, shade, strengths
from support.records import record as made_record


def make(
    tokens: list[str],
    weight: list[float],
    segment: list[int],
    advantage: float = -2.0,
    mask: list[int] | None = None,
) -> Record:
    values: dict[str, Any] = {"tokens": tokens, "weight": weight, "segment": segment, "advantage": advantage}
    values |= {"credit": [advantage * w for w in weight], "mask": mask or [1] * len(tokens)}
    return made_record(len(tokens), **values, turn=[0 if m else -1 for m in values["mask"]])


@pytest.fixture
def record() -> Record:
    """Seven tokens: a segment of three between others, one heavy token alone, two of tool output."""
    return make(
        ["7-3", "=", "3", ";", "so", "tool", "!"],
        [0.8, 1.6, 1.6, 1.6, 0.4, 0.0, 0.0],
        [0, 1, 1, 1, 2, -1, -1],
        mask=[1, 1, 1, 1, 1, 0, 0],
    )


def look(text: Text, shown: str) -> tuple[str | None, bool, bool]:
    """Background, bold and underline of the one place where ``shown`` stands."""
    assert text.plain.count(shown) == 1
    style = text.get_style_at_offset(Console(), text.plain.index(shown))
    background = style.bgcolor.name if style.bgcolor else None
    return background, bool(style.bold), bool(style.underline)


def printed(thing: object, **settings: object) -> str:
    file = io.StringIO()
    Console(file=file, width=200, **settings).print(thing)  # type: ignore[arg-type]
    return file.getvalue()


def test_tool_output_is_never_coloured_even_if_the_file_gives_it_credit(record: Record):
    text = credit_text(replace(record, credit=[-1.6, -3.2, -3.2, -3.2, -0.8, 9.0, 9.0]))
    assert look(text, "so")[0] == shade(-0.4, 2.0)  # nor does it pale the others
    assert look(text, "tool") == look(text, "!") == (None, False, False)


@pytest.mark.parametrize(
    ("tokens", "weight", "segment", "plain"),
    [
        (["7-3", "=", "3;", "so"], [0.8, 1.6, 1.6, 0.4], [0, 1, 1, 2], "7-3⟦=3;⟧⟨1.6⟩so⟨0.4⟩"),
        (list("abcd"), [0.7, 0.7, 0.8, 1.0], [0, 1, 2, 3], "abcd⟨1.0⟩"),
        (list("abc"), [1.0, 1.0, 1.0], [0, 0, 0], "⟦abc⟧⟨1.0⟩"),
        (list("abc"), [1.0, float("nan"), 1.0], [0, 1, 2], "ab⟨nan⟩c"),
        (["a", "b", "c\n", "d"], [0.8, 1.5, 1.5, 0.8], [0, 1, 1, 2], "a⟦bc⏎⟧⟨1.5⟩\nd"),
    ],
)
def test_the_plain_text_has_segments_and_the_weights_that_are_not_typical(tokens, weight, segment, plain):
    assert credit_text(make(tokens, weight, segment)).plain == plain


def test_a_segment_that_tool_output_interrupts_has_one_onset():
    record = make(list("abcdef"), [1.0] * 6, [0, 1, 1, -1, 1, 1], mask=[1, 1, 1, 0, 1, 1])
    assert [(run.start, run.stop, run.onset) for run in runs(record)] == [
        (0, 1, False), (1, 3, True), (3, 4, False), (4, 6, False),
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["tokens", "prompt", "method", "fallback"])
def test_model_text_is_no_command_of_the_terminal(record: Record, field: str):
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\b\u202eabc[red]x[/red]\u2028\ud800"
    record = replace(record, **{field: [evil] * 7 if field == "tokens" else evil})
    out = printed(rollout_panel(record), no_color=True)
    assert not set(out) & set("\x1b\x07\x9b\r\b\u202e\u2028\ud800")
    assert "[red]" in out and "␛" in out
    coloured = printed(rollout_panel(record), force_terminal=True, color_system="truecolor")
    assert set(re.findall(r"\x1b.?[^m]{0,40}?([a-zA-Z])", coloured)) == {"m"}
    assert "\x1b[2J" not in coloured and "\x1b]" not in coloured and "\x9b" not in coloured


def test_each_token_has_the_colour_of_its_own_credit(record: Record):
    text = credit_text(record)
    assert look(text, "7-3") == (shade(-0.8, 2.0), False, False)
    assert look(text, "=") == (shade(-1.6, 2.0), True, True), "the onset is bold and underlined"
    assert look(text, ";") == (shade(-1.6, 2.0), False, False)
    assert look(text, "so") == (shade(-0.4, 2.0), False, False)
    # An additive method flips signs inside one completion.
    text = credit_text(replace(make(["a", "b", "c"], [0.0] * 3, [0, 1, 2], 1.0), credit=[1.0, -1.0, 0.0]))
    assert [look(text, shown)[0] for shown in "abc"] == ["#aadaf4", "#f2cf80", None], (
        "praise blue, blame orange"
    )


@pytest.mark.parametrize(("heaviest", "full"), [(1.5, "2"), (3.71, "3.7")])
def test_the_legend_says_where_the_colour_is_full(heaviest, full):
    legend = printed(rollout_panel(make(list("ab"), [0.5, heaviest], [0, 1])))
    assert f"blame x{full}     0     praise x{full} (x1 is GRPO's)" in legend.replace(
        "\N{MULTIPLICATION SIGN}", "x"
    )
    none = printed(rollout_panel(replace(make(list("ab"), [1.0, 1.0], [0, 0], 0.0), credit=[0.0, 0.0])))
    assert "praise" not in none and "⟦" not in none, "nothing is credited, so nothing is drawn"


def test_at_zero_advantage_signed_credit_is_written():
    record = replace(make(["a", "b", "c"], [1.0] * 3, [0, 1, 2], 0.0), credit=[0.0, 0.0, -0.5])
    assert credit_text(record).plain == "abc⟨-0.5⟩" and strengths(record) == [0.0, 0.0, -1.0]
