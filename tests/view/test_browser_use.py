"""The viewer in a real browser: what keys, pointer and filter do; skipped where there is no Chromium."""
# ruff: noqa: RUF001  the page writes real minus signs

from dataclasses import replace
from typing import Any

import pytest

from gear_rl.view.terminal import shade
from view.browser import AGENT, DOWN, END, ESCAPE, MIXED, RIGHT, TAB, colour, listed, made, token

pytestmark = pytest.mark.browser


def test_two_methods_stand_side_by_side(browser, page):
    browser.open(page)
    assert browser.texts("#beside option") == ["nothing", "rlsd · 1.jsonl"]
    browser.press("c")
    browser.wait("state.sides.length === 2")
    assert browser.texts("article h2") == ["gear0.jsonl", "rlsd1.jsonl"]
    left, right = browser.js(
        "return [...document.querySelectorAll('article')].map((e) => e.getBoundingClientRect().left)"
    )
    assert left + 300 < right
    browser.hover(token(3, side=2))
    assert browser.js("return [...document.querySelectorAll('.at')].map((e) => e.dataset.t)") == ["3", "3"]
    assert browser.texts("#token .who") == ["gear", "rlsd"]
    assert browser.texts("#token p:nth-of-type(3) .pair") == [
        "segment 3", "weight 1", "advantage −2 blame", "student logprob 0",
    ]  # fmt: skip
    found = [colour(browser.look(token(0, side), "backgroundColor")) for side in (1, 2)]
    expected = [tuple(bytes.fromhex(shade(s, 4.0)[1:])) for s in (-0.5, -1.0)]
    assert all(
        abs(a - b) <= 1
        for one, two in zip(found, expected, strict=True)
        for a, b in zip(one, two, strict=True)
    ), "both on the scale of the stronger"
    browser.press("j")
    browser.shown(1)
    browser.press("k")
    browser.shown(0)
    browser.wait("state.sides.length === 2")
    browser.press("c")
    browser.wait("state.sides.length === 1")


def test_the_nearest_record_of_another_method_stands_beside(browser, tmp_path):
    """A model that is sure writes the same again and again: what counts is the same rollout, if it is there."""
    far = [replace(MIXED, method="rlsd", step=4, group=9), replace(MIXED, method="rlsd", step=4)]
    again = [MIXED, replace(MIXED, step=4)]
    browser.open(made(tmp_path, [*again, replace(MIXED, prompt="other", method="rlsd")], far))
    assert browser.js("return [0, 1, 2, 3].map(twins)") == [[3], [4], [], [0]]


def test_the_same_completion_in_other_turns_is_aligned_by_its_ids(browser, tmp_path):
    """The second engine trained the tool's answer too, so that each page has another number of tokens."""
    flat = replace(AGENT, method="other", mask=[1] * 8, turn=[0] * 8, segment=list(range(8)), signals={})
    browser.open(made(tmp_path, [AGENT, flat]))
    browser.press("c")
    browser.wait("state.sides.length === 2")
    browser.hover(token(6))
    assert browser.texts(".at") == ["done", "done"]


def test_keys_walk_through_the_records(browser, page):
    browser.open(page)
    browser.press("j")
    browser.shown(1)
    browser.press(DOWN)
    browser.shown(2)
    browser.press("k")
    browser.shown(1)
    assert browser.text("#place") == "2 of 5"
    assert browser.js("return location.hash") == "#record=1"
    assert browser.text('.row[aria-selected="true"] .hint') == "who?"
    browser.press("/")
    assert browser.js("return document.activeElement.id") == "by-method"
    browser.press("k", ESCAPE)
    assert browser.js("return document.activeElement.id") == "main"
    browser.press("f")
    assert browser.js("return document.activeElement.id") == "by-method"
    assert browser.look("#by-method", "outlineStyle") == "solid"
    browser.press(ESCAPE, "?")
    assert browser.js("return document.getElementById('help').open")
    browser.press("j")
    browser.press(ESCAPE)
    assert browser.text("#place") == "2 of 5", "behind a dialog keys do nothing"


def test_tab_reaches_every_part_in_the_order_of_the_screen(browser, page):
    browser.open(page)
    browser.js("document.activeElement.blur()")
    parts: list[str] = []
    for _ in range(30):
        browser.press(TAB)
        part = browser.js(
            "const e = document.activeElement;"
            "return e.closest('#bar, #filter, #list, #prompt, .body')?.id || e.className"
        )
        if part not in parts:
            parts.append(part)
    assert parts[:6] == ["skip", "bar", "filter", "list", "prompt", parts[5]]
    assert parts[5].startswith("t "), "one stop for the whole completion"


def test_the_filter(browser, page):
    browser.open(page)
    for fields, kept in [
        ({"step-from": "1", "step-to": "2"}, [1, 2]),
        ({"reward-from": "0.5"}, [1]),
        ({"reward-to": "0"}, [0, 4]),
        ({"by-group": "1"}, [1]),
        ({"by-method": "1"}, [4]),
        ({"twins": True}, [0, 4]),
        ({"order": "tokens"}, [1, 0, 4, 2, 3]),
        ({"order": "spread"}, [0, 1, 4, 2, 3]),
        ({"order": "reward"}, [0, 4, 1, 2, 3]),
        ({"by-group": "0", "step-from": "2"}, [2, 3, 4]),
    ]:
        for name, value in fields.items():
            browser.fill(name, value)
        assert listed(browser) == kept, fields
        browser.click("#filter [type=reset]")
        browser.wait("list.order.length === 5")
    browser.fill("by-group", "9")
    assert browser.text("#sides") == "No record passes the filter."
    assert browser.text("#count") == "0 of 5 records"
    browser.press("j", RIGHT, "n", "c")
    browser.fill("by-group", "1")
    browser.shown(1)


def test_the_record_on_the_screen_stays_if_the_filter_lets_it_through(browser, page):
    browser.open(page, 1)
    browser.fill("step-from", "1")
    assert browser.text("#place") == "1 of 4"
    assert browser.js("return document.documentElement.dataset.shown") == "1"


def test_the_most_frequent_onsets(browser, page):
    browser.open(page)
    browser.press("o")
    browser.wait("document.querySelector('#onsets tbody').rows.length === 2")
    rows = "[...document.querySelectorAll('#onsets tbody tr')]"
    rows = browser.js(f"return {rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert rows == [[" =", "1", "50.0%", "2", "1"], ["<tool_call>", "1", "50.0%", "1", "1"]]
    browser.click("#onsets tbody tr:nth-of-type(2) button")
    browser.shown(1)
    assert listed(browser) == [1]
    assert browser.text("#by-onset") == "onset “<tool_call>” ✕"
    browser.click("#by-onset")
    assert len(listed(browser)) == 5
    browser.fill("by-method", "1")
    browser.press(ESCAPE, "o")
    browser.wait("document.querySelector('#onsets-about').textContent.startsWith('No segment')")
    browser.press(ESCAPE)


def test_a_long_list_exists_only_where_it_is_seen(browser, tmp_path):
    page = made(tmp_path, [replace(MIXED, group=n) for n in range(700)])
    browser.open(page, 300)
    rows = browser.js("return document.querySelectorAll('.row').length")
    assert 5 < rows < 60
    assert browser.text('.row[aria-selected="true"]').count("group 300") == 1, "it is scrolled to"
    browser.click('.row[aria-selected="true"]')
    browser.js("document.getElementById('list').focus()")
    browser.press(END)
    browser.shown(699)
    assert browser.text("#place") == "700 of 700"
    assert (
        browser.js("return document.getElementById('list').getAttribute('aria-activedescendant')")
        == "row-699"
    )


def test_a_page_that_was_cut_off_says_so(browser, tmp_path):
    page = made(tmp_path, [MIXED, AGENT])
    whole = page.read_text(encoding="utf-8")
    page.write_text(whole[: whole.index('<script type="text/plain" id="r1">')], encoding="utf-8")
    browser.open(page)
    browser.press("j")
    browser.wait("!document.getElementById('message').hidden")
    assert "the page lacks the block r1: it was cut off" in browser.text("#message")
    browser.press("k")
    browser.shown(0)
    assert browser.js("return document.getElementById('message').hidden")


def test_a_phone_shows_it_without_sideways_scrolling(browser, page):
    browser.screen(360, 740, mobile=True)
    browser.open(page)
    browser.press("c")
    browser.wait("state.sides.length === 2")
    wide = "[document.documentElement, document.getElementById('main')].map((e) => e.scrollWidth - e.clientWidth)"
    assert browser.js(f"return {wide}") == [0, 0]
    tops = browser.js(
        "return [...document.querySelectorAll('article')].map((e) => e.getBoundingClientRect().top)"
    )
    assert tops[0] < tops[1], "one below the other"
    assert browser.look("#side", "display") == "none"
    browser.click("#toggle")
    assert browser.look("#side", "display") == "flex"
    assert browser.js("return document.getElementById('toggle').getAttribute('aria-expanded')") == "true"
    browser.click('.row[aria-posinset="2"]')
    browser.shown(1)
    assert browser.look("#side", "display") == "none"


def test_everything_that_can_be_used_has_a_name(browser, page):
    browser.open(page)
    tree: list[dict[str, Any]] = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = {"button", "combobox", "textbox", "spinbutton", "checkbox", "listbox", "option", "link", "image"}
    seen = [
        (n["role"]["value"], n["name"]["value"])
        for n in tree
        if not n["ignored"] and n["role"]["value"] in used
    ]
    assert [role for role, name in seen if not name.strip()] == []
    assert {"step from", "step to", "reward from", "reward to"} <= {name for _, name in seen}
    assert {"button", "combobox", "spinbutton", "checkbox", "listbox"} <= {role for role, _ in seen}
