"""The viewer in a real browser: what a person sees and hears; skipped where there is no Chromium."""
# ruff: noqa: RUF001  the page writes real minus signs

import json
from dataclasses import replace

import pytest

from gear_rl.view.html import save_html
from gear_rl.view.terminal import shade
from view.browser import ESCAPE, LEFT, MIXED, NASTY, RIGHT, colour, contrast, made, numbers, token

pytestmark = pytest.mark.browser


def test_the_page_asks_for_nothing_and_the_console_is_silent(browser, page):
    browser.open(page)
    browser.press("o", ESCAPE, "c", "j")
    browser.wait("state.sides.length === 1")
    assert browser.requests() == [page.as_uri()] or browser.requests() == []
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    refused = browser.js(
        "const e = document.createElement('script'); e.textContent = 'window.broken = 1';"
        "document.body.append(e); return window.broken === undefined"
    )
    assert refused, "the policy lets no other script run"
    [complaint] = browser.complaints()
    assert "Content Security Policy" in complaint


def test_tokens_stand_on_the_terminals_colours(browser, page):
    browser.open(page)
    for t, strength in enumerate([-0.5, -4.0, -4.0, 1.0]):
        expected = tuple(bytes.fromhex(shade(strength, 4.0)[1:]))
        found = colour(browser.look(token(t), "backgroundColor"))
        assert all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True)), (t, found, expected)
    grey = colour(browser.look(token(4), "backgroundColor"))
    assert len(set(grey)) <= 2 and max(grey) - min(grey) < 4, "a masked token is grey"


def test_the_sign_is_told_without_colour(browser, page):
    browser.open(page)
    assert [browser.look(token(t), "borderBottomStyle") for t in (0, 1, 3, 4)] == [
        "dotted", "dotted", "solid", "none",
    ]  # fmt: skip
    assert "advantage −2 blame" in browser.text(".facts")
    assert browser.js("return document.querySelector('.worth').dataset.worth") == "−4.0"
    assert browser.text('.row[aria-posinset="1"] .sign') == "−"
    assert browser.text('.row[aria-posinset="2"] .sign') == "+"


def test_segments_are_boxed_and_their_onsets_marked(browser, page):
    browser.open(page)
    assert browser.texts(".body .box") == [" = 4⏎"]
    mark = "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
    assert browser.js(mark, token(1)) == '""', "a triangle is drawn"
    assert browser.js(mark, token(2)) == "none"
    assert browser.look(".box", "borderTopStyle") == "solid"
    assert browser.text(".body") == "7-3 = 4⏎\nso no", "and the text is the completion's"


def test_turns_calls_and_answers_have_lines_of_their_own(browser, page):
    browser.open(page, 1)
    assert browser.texts(".label") == ["turn 1", "tool", "turn 2"]
    tops = browser.js(
        "return [...document.querySelectorAll('.body .t')].map((e) => Math.round(e.getBoundingClientRect().top))"
    )
    assert browser.texts(".body .t") == ["I ask", "<tool_call>", "{}", "</tool_call>", " then", "ann", "done"]
    assert tops[1] == tops[2] == tops[3]
    assert tops[0] < tops[1] < tops[4] < tops[5] < tops[6]
    assert browser.text(".question") == "who?"
    assert browser.text("#prompt details .question") == "<|im_start|>user⏎\nwho?<|im_end|>⏎\n"
    assert "tools 2 calls, 1 raised" in browser.text(".facts")
    assert "cut off" in browser.text(".facts")
    browser.hover(token(6))
    assert "token 8 of 8, id 8" in browser.text(".which"), "counted in the completion, not in the layout"
    browser.hover(token(5))
    assert browser.text("#token .value") == "tool output, not trained"


SHOWN = {
    "segment": "1 ▾ onset", "weight": "4", "advantage": "−8 blame", "KL": "2", "entropy": "0.25",
    "teacher logprob": "−2",
}  # fmt: skip


def test_the_pointer_shows_every_number_of_a_token(browser, page):
    browser.open(page)
    browser.hover(token(3))
    assert browser.text("#token code") == "so"
    assert numbers(browser) == {
        "segment": "70000", "weight": "−1", "advantage": "+2 praise", "KL": "0.5", "entropy": "0",
        "teacher logprob": "−4",
    }  # fmt: skip
    browser.hover(token(1))
    assert numbers(browser) == SHOWN
    assert "token 2 of 5, id 2" in browser.text(".which")


def test_the_keyboard_shows_the_same_and_is_heard(browser, page):
    browser.open(page)
    browser.hover(token(0))
    browser.press(RIGHT)
    assert numbers(browser) == SHOWN
    assert browser.js("return document.activeElement.dataset.t") == "1"
    assert browser.look(token(1), "outlineStyle") == "solid"
    said = browser.text("#spoken")
    assert "=" in said and "KL 2" in said and "advantage −8 blame" in said
    browser.press(RIGHT, RIGHT, LEFT)
    assert browser.js("return document.activeElement.dataset.t") == "2"
    browser.press("p")
    assert browser.js("return document.activeElement.dataset.t") == "1"
    assert browser.js("return document.querySelectorAll('.t[tabindex=\"0\"]').length") == 1


def test_strips_draw_the_signals_from_zero(browser, page):
    """Steps of a token each: KL 0.1, 2, 0, 0.5 of 2 stand at 95, 0, nothing and 75 from the top."""
    browser.open(page)
    assert browser.texts(".strip .name") == [
        "credit−4.0 to +1.0",
        "KL1 = 2",
        "entropy1 = 1",
        "teacher logprob−4 to 0",
    ]
    assert browser.js("return document.querySelector('.strip.divergence .curve').getAttribute('d')") == (
        "M0 100.0V95.0H1V100.0M1 100.0V0.0H2V100.0M3 100.0V75.0H4V100.0"
    )
    blame, praise = (
        browser.js("return document.querySelector(arguments[0]).getAttribute('d')", f".credit .{sign}")
        for sign in ("blame", "praise")
    )
    assert praise == "M3 20.0V0.0H4V20.0", "zero lies 1 of 5 from the top"
    assert blame == "M0 20.0V30.0H1V20.0M1 20.0V100.0H2H3V20.0"
    box = browser.js(
        "const e = document.querySelector('.credit .gap'); return [e.getAttribute('x'), e.getAttribute('width')]"
    )
    assert box == ["4", "1"], "tool output is grey"
    assert browser.js("return document.querySelector('.credit .opened').getAttribute('width')") == "2"
    browser.click(".strip.divergence svg")  # its middle: token 2 of 0 to 4
    assert browser.js("return document.activeElement.dataset.t") == "2"
    assert browser.js("return document.querySelector('.strip.divergence .cursor').getAttribute('x')") == "2"


def test_records_without_credit_or_tokens(browser, page):
    browser.open(page, 2)
    assert "no credit: the advantage is 0" in browser.text(".legend")
    assert "kept its GRPO advantage: no_context" in browser.text(".facts")
    assert "reward none" in browser.text(".facts")
    assert browser.look(token(0), "borderBottomStyle") == "none"
    browser.press("j")
    browser.shown(3)
    assert browser.text(".body") == "no token"
    assert browser.text("#token") == ""
    browser.press(RIGHT, "n")


def test_what_was_not_finite_is_named(browser, tmp_path):
    page = made(tmp_path, [MIXED])
    line = (tmp_path / "0.jsonl").read_text(encoding="utf-8")
    for known, unknown in [("credit", "[-1.0,-8.0"), ("divergence", "[0.1")]:
        line = line.replace(f'"{known}":{unknown}', f'"{known}":[NaN' + ",NaN" * unknown.count(","))
    (tmp_path / "0.jsonl").write_text(line, encoding="utf-8")
    save_html([tmp_path / "0.jsonl"], page)
    browser.open(page)
    browser.hover(token(0))
    assert browser.js("return document.querySelector('.body .worth').dataset.worth") == "−4.0 to 0"
    assert (numbers(browser)["advantage"], numbers(browser)["KL"]) == ("not finite", "not finite")
    assert browser.look(token(0), "borderBottomStyle") == "none"


def test_nothing_of_a_record_is_obeyed(browser, tmp_path):
    signals = {NASTY: [0.5] * 5, "__proto__": [0.25] * 5}
    nasty = replace(
        MIXED, tokens=[NASTY] * 5, prompt=NASTY, method=NASTY, context=NASTY, fallback=NASTY,
        tools={NASTY: 1, "__proto__": 2}, signals=signals,
    )  # fmt: skip
    page = made(tmp_path, [nasty], [replace(nasty, method=NASTY + "2")])
    browser.open(page)
    browser.press("c", "o")
    browser.wait("document.querySelector('#onsets tbody').rows.length === 1")
    browser.press(ESCAPE)
    browser.hover(token(0))
    assert browser.js("return [window.broken, document.querySelectorAll('img').length]") == [None, 0]
    assert browser.text(token(0)) == NASTY
    assert browser.text(".question") == NASTY
    assert browser.text("article h2").startswith(NASTY)
    assert browser.texts("#by-method option")[1].startswith(NASTY)
    assert f"teacher saw {NASTY}" in browser.text(".facts")
    assert {NASTY: "0.5", "  proto  ": "0.25"}.items() <= numbers(browser).items()


def test_special_characters_are_shown(browser, tmp_path):
    tokens = ["<|im_end|>", "\t", "a\n\nb", "\u202e\ud800", ""]
    page = made(tmp_path, [replace(MIXED, tokens=["x"] * 5)])
    text = (tmp_path / "0.jsonl").read_text(encoding="utf-8")
    row = json.loads(text) | {"tokens": tokens}
    (tmp_path / "0.jsonl").write_text(json.dumps(row), encoding="utf-8")
    save_html([tmp_path / "0.jsonl"], page)
    browser.open(page)
    assert browser.texts(".body .t") == ["<|im_end|>", "⇥", "a⏎\n⏎\nb", "\\u202e\\ud800", "∅"]
    height = browser.js("return document.querySelectorAll('.body .t')[2].getClientRects().length")
    assert height >= 3, "and its line breaks are made"


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_every_ground(browser, page, dark):
    browser.dark(dark)
    browser.open(page)
    light = sum(colour(browser.look("body", "backgroundColor"))) > 380
    assert light is not dark
    for selector in (token(0), token(1), token(3), token(4), ".sign", "body"):
        assert contrast(browser, selector) >= 4.5, selector
