"""What a reader of the terminal sees: the right tokens coloured, bracketed and marked, and nothing obeyed."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from gear_rl.records import Record
from gear_rl.view.terminal import choose, credit_text, rollout_panel, runs, shade, strengths, visible


def make(
    tokens: list[str],
    weight: list[float],
    segment: list[int],
    advantage: float = -2.0,
    mask: list[int] | None = None,
    fallback: str | None = None,
    **more: Any,
) -> Record:
    mask = mask or [1] * len(tokens)
    more = {"turn": [0 if m else -1 for m in mask], **more}
    return Record(
        step=3, group=1, method="gear", prompt="7 - 3 - 5", tokens=tokens, ids=list(range(len(tokens))),
        mask=mask, segment=segment, reward=0.0, advantage=advantage,
        credit=[advantage * w for w in weight], weight=weight, fallback=fallback,
        **more,
    )  # fmt: skip


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
    Console(file=file, width=100, **settings).print(thing)  # type: ignore[arg-type]
    return file.getvalue()


def test_each_token_bears_the_colour_of_its_own_weight(record: Record):
    text = credit_text(record)
    assert look(text, "7-3")[0] == shade(-0.8, 2.0)
    assert look(text, "=")[0] == look(text, ";")[0] == shade(-1.6, 2.0)
    assert look(text, "so")[0] == shade(-0.4, 2.0)


def test_praise_is_blue_and_blame_orange():
    def channels(advantage: float) -> list[int]:
        background = look(credit_text(make(["a", "b"], [1.0, 1.0], [0, 1], advantage)), "a")[0] or ""
        return [int(background[n : n + 2], 16) for n in (1, 3, 5)]

    red, _, blue = channels(0.5)
    assert blue > red
    red, _, blue = channels(-0.5)
    assert red > blue


def test_the_sign_is_the_credits_not_the_advantages():
    """An additive method flips signs inside one completion."""
    text = credit_text(replace(make(["a", "b"], [1.0, -1.0], [0, 1], 1.0), credit=[1.0, -1.0]))
    assert look(text, "a")[0] == shade(1.0, 2.0)
    assert look(text, "b")[0] == shade(-1.0, 2.0)


def test_tool_output_is_never_coloured_even_if_the_file_gives_it_credit(record: Record):
    record = replace(record, credit=[-1.6, -3.2, -3.2, -3.2, -0.8, 9.0, 9.0])
    text = credit_text(record)
    assert look(text, "so")[0] == shade(-0.4, 2.0)  # nor does it pale the others
    assert look(text, "tool") == look(text, "!") == (None, False, False)


def test_a_token_without_credit_has_no_background():
    assert look(credit_text(make(["a", "b"], [0.0, 2.0], [0, 1])), "a")[0] is None


def test_only_the_onset_is_bold_and_underlined(record: Record):
    text = credit_text(record)
    assert look(text, "=")[1:] == (True, True)
    for other in ("7-3", "3;", ";", "so"):
        place = text.plain.rindex(other)
        style = text.get_style_at_offset(Console(), place)
        assert not style.bold and not style.underline


def test_the_plain_text_carries_segments_weights_and_tool_output(record: Record):
    assert credit_text(record).plain == "7-3⟨0.8⟩⟦=3;⟧⟨1.6⟩so⟨0.4⟩«tool!»"
    assert printed_wide(rollout_panel(record)).count("7-3⟨0.8⟩⟦=3;⟧⟨1.6⟩so⟨0.4⟩«tool!»") == 1


def test_weights_near_the_typical_one_are_not_written():
    assert credit_text(make(list("abcd"), [0.7, 0.7, 0.8, 1.0], [0, 1, 2, 3])).plain == "abcd⟨1.0⟩"


def test_one_segment_for_all_is_bracketed_without_an_onset():
    text = credit_text(make(["a", "b", "c"], [1.0] * 3, [0, 0, 0]))
    assert text.plain == "⟦abc⟧⟨1.0⟩"
    assert look(text, "a")[1:] == (False, False)


def test_a_segment_that_tool_output_interrupts_has_one_onset():
    record = make(list("abcdef"), [1.0] * 6, [0, 1, 1, -1, 1, 1], mask=[1, 1, 1, 0, 1, 1])
    assert [(run.start, run.stop, run.onset) for run in runs(record)] == [
        (0, 1, False), (1, 3, True), (3, 4, False), (4, 6, False),
    ]  # fmt: skip


def test_at_zero_advantage_signed_credit_is_written():
    record = replace(make(["a", "b", "c"], [1.0] * 3, [0, 1, 2], 0.0), credit=[0.0, 0.0, -0.5])
    assert credit_text(record).plain == "abc⟨-0.5⟩"
    assert strengths(record) == [0.0, 0.0, -1.0]


def test_a_null_of_the_file_is_not_credit():
    record = replace(make(["a", "b", "c"], [1.0] * 3, [0, 1, 2]), credit=[-2.0, float("nan"), -2.0])
    assert strengths(record) == [-1.0, 0.0, -1.0]
    object.__setattr__(record, "credit", [-2.0, None, -2.0])  # what read_records gives
    object.__setattr__(record, "weight", [1.0, None, 1.0])
    assert credit_text(record).plain == "ab⟨nan⟩c"


def test_a_newline_is_shown_and_ends_the_line_after_the_bracket():
    record = make(["a", "b", "c\n", "d"], [0.8, 1.5, 1.5, 0.8], [0, 1, 1, 2])
    assert credit_text(record).plain == "a⟦bc⏎⟧⟨1.5⟩\nd"


def test_what_student_and_teacher_were_shown_stands_there_as_it_was(record):
    shown = "<|im_start|>user\n" + "long " * 200 + "[bold]?\x1b<|im_end|>"
    told = replace(record, prompt=shown, teacher_prompt=shown + "it is -1")
    out = printed(rollout_panel(told, prompts=True))
    assert out.count("<|im_start|>user") == 2 and out.count("[bold]?␛<|im_end|>") == 2
    assert "it is -1" in out and "it is -1" not in printed(rollout_panel(told))
    assert "the teacher was shown nothing" in printed(rollout_panel(record, prompts=True))


@pytest.mark.parametrize("field", ["tokens", "prompt", "method", "fallback"])
def test_model_text_reaches_no_terminal_as_a_command(record: Record, field: str):
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\b\u202eabc[red]x[/red]\u2028\ud800"
    record = replace(record, **{field: [evil] * 7 if field == "tokens" else evil})
    out = printed(rollout_panel(record), no_color=True)
    assert not set(out) & set("\x1b\x07\x9b\r\b\u202e\u2028\ud800")
    assert "[red]" in out and "␛" in out
    coloured = printed(rollout_panel(record), force_terminal=True, color_system="truecolor")
    assert set(re.findall(r"\x1b.?[^m]{0,40}?([a-zA-Z])", coloured)) == {"m"}
    assert "\x1b[2J" not in coloured and "\x1b]" not in coloured and "\x9b" not in coloured


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_whatever_the_text_nothing_steers(text: str):
    shown = visible(text)
    assert all(c.isprintable() or c.isspace() or c in "\u200c\u200d" or ord(c) > 0x9F for c in shown)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F for c in shown)
    shown.encode()  # no lone surrogate is left


def test_the_panel_tells_what_the_rollout_was(record: Record):
    out = printed(rollout_panel(replace(record, fallback="no_context", prompt="x" * 999 + " the question?")))
    for fact in ("gear", "step 3", "group 1", "reward 0", "advantage -2", "no_context", "the question?"):
        assert fact in out
    assert "x" * 400 not in out.replace("\n", "").replace("│", "").replace(" ", "")


def test_choose_takes_a_segment_before_a_spread_and_the_widest_of_these():
    flat = make(list("abc"), [1.0] * 3, [0, 0, 0])
    tokenwise = make(list("abc"), [0.1, 0.1, 2.8], [0, 1, 2])
    narrow = make(list("abc"), [0.8, 1.1, 1.1], [0, 1, 1])
    wide = make(list("abc"), [0.4, 1.3, 1.3], [0, 1, 1], 0.7)
    silent = make(list("abc"), [0.0, 9.0, 9.0], [0, 1, 1], 0.0)
    fallen = make(list("abc"), [0.0, 9.0, 9.0], [0, 1, 1], fallback="non_finite")
    assert choose([flat, silent, narrow, fallen, wide, tokenwise]) is wide
    assert choose([silent, flat, tokenwise, fallen]) is tokenwise
    assert choose([narrow, replace(narrow, step=9)]) is narrow
    assert choose(iter([silent])) is silent


def test_choose_of_nothing_says_so():
    with pytest.raises(ValueError, match="no records to choose from"):
        choose([])


def test_turns_and_answers_have_lines_of_their_own():
    tokens = [
        "<tool_call>",
        "\n{look}\n",
        "<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\n",
        "a <b>\x1b",
        "\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "do",
        "ne",
    ]
    mask = [1, 1, 1, 0, 0, 0, 1, 1]
    record = make(
        tokens,
        [2.0, 2.0, 0.5, 0, 0, 0, 0.5, 0.5],
        [0, 0, 1, -1, -1, -1, 2, 3],
        mask=mask,
        turn=[0, 0, 0, -1, -1, -1, 1, 1],
        tools={"calls": 2, "raised": 1},
        context="sibling",
        truncated=True,
    )
    lines = credit_text(record).plain.split("\n")
    assert lines == [
        " turn 1  ⟦<tool_call>⏎{look}⏎⟧⟨2.0⟩<|im_end|>⏎",
        " answer  «a <b>␛⏎»",
        " turn 2  done",
    ]
    shown = printed_wide(rollout_panel(record))
    assert all(line in shown for line in lines)
    assert "2 tool calls, failed: 1 raised" in shown
    assert "teacher saw: sibling" in shown
    assert "cut off" in shown


def printed_wide(panel: Any) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(panel)
    return console.file.getvalue()
