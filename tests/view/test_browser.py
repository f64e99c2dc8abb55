"""The viewer's page in Chromium; skipped without selenium, chromium or chromedriver."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gear_rl.records import Record
from gear_rl.view.html import save_html
from gear_rl.view.terminal import shade

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
support = pytest.importorskip("selenium.webdriver.support.ui")
PROGRAMS = [shutil.which(program) for program in ("chromium", "chromedriver")]
if None in PROGRAMS:
    pytest.skip("apt-get install chromium chromium-driver", allow_module_level=True)
pytestmark = pytest.mark.browser
RIGHT, ESCAPE = "\ue014", "\ue00c"
FLAGS = ("--headless", "--no-sandbox", "--force-color-profile=srgb", "--window-size=1280,860")
NASTY = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"

MIXED = Record(
    step=0, group=0, method="gear", prompt="7 - 3 - 5", tokens=["7-3", " =", " 4\n", "so", " no"],
    ids=[1, 2, 3, 4, 5], mask=[1, 1, 1, 1, 0], turn=[0, 0, 0, 0, -1], segment=[0, 1, 1, 70_000, -1], reward=0.0,
    advantage=-2.0, credit=[-1.0, -8.0, -8.0, 2.0, 0.0], weight=[0.5, 4.0, 4.0, -1.0, 0.0],
    signals={"student_entropy": [0.5, 0.25, 1.0, 0.0, 0.0], "divergence": [0.1, 2.0, 0.0, 0.5, 0.0],
             "teacher_logprob": [-1.0, -2.0, 0.0, -4.0, 0.0]},
    context="answer",
)  # fmt: skip
"""In units of the advantage: blame 0.5, a segment of blame 4, which is the full colour, and praise 1."""
AGENT = Record(
    step=1, group=1, method="gear", prompt="<|im_start|>user\nwho?<|im_end|>\n", reward=1.0, advantage=1.0,
    tokens=["I ask", "<tool_call>", "{}", "</tool_call>", " then", "<tool_response>", "ann", "done"],
    ids=[1, 2, 3, 4, 5, 6, 7, 8], mask=[1, 1, 1, 1, 1, 0, 0, 1], turn=[0, 0, 0, 0, 0, -1, -1, 1],
    segment=[0, 1, 1, 1, 2, -1, -1, 3], credit=[0.5, 1.5, 1.5, 1.5, 1.0, 0.0, 0.0, 1.0],
    weight=[0.5, 1.5, 1.5, 1.5, 1.0, 0.0, 0.0, 1.0], signals={"divergence": [0, 1, 0, 0, 0, 0, 0, 0.5]},
    tools={"calls": 2, "raised": 1}, truncated=True,
)  # fmt: skip


class Browser:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, place: str = "#record=0", record: int = 0) -> None:
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(page.as_uri() + place)
        self.wait(f"document.documentElement.dataset.shown === '{record}'")

    def js(self, code: str, *values: object) -> Any:
        return self.driver.execute_script(f"return {code}", *values)

    def wait(self, condition: str) -> None:
        support.WebDriverWait(self.driver, 20, poll_frequency=0.02).until(lambda _: self.js(condition))

    def texts(self, selector: str) -> list[str]:
        return self.js("[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def press(self, *keys: str) -> None:
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def fill(self, name: str, value: str) -> None:
        code = "((e, value) => { e.value = value; e.dispatchEvent(new Event('input', {bubbles: true})); })"
        self.js(f"{code}(document.getElementById(arguments[0]), arguments[1])", name, value)

    def hover(self, t: int) -> None:
        node = self.driver.find_element("css selector", f".t[data-t='{t}']")
        webdriver.ActionChains(self.driver).move_to_element(node).perform()

    def numbers(self) -> dict[str, str]:
        pairs = "[...document.querySelectorAll('#token .pair')]"
        return dict(self.js(f"{pairs}.map((e) => [...e.children].map((c) => c.textContent))"))


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: Any) -> Iterator[Browser]:
    yield Browser(driver)
    assert [entry["message"] for entry in driver.get_log("browser")] == []


def made(folder: Path, *files: list[Record], **changes: object) -> Path:
    """The page of the files; ``changes`` are written into every record's JSON."""
    paths = [folder / f"{n}.jsonl" for n in range(len(files))]
    for path, records in zip(paths, files, strict=True):
        rows = [json.loads(record.to_json()) | changes for record in records]
        path.write_text("\n".join(map(json.dumps, rows)))
    save_html(paths, folder / "page.html")
    return folder / "page.html"


def test_tokens_have_the_terminals_colours_and_lines_below_for_the_sign(browser, tmp_path):
    browser.open(made(tmp_path, [MIXED]))
    style = "[...document.querySelectorAll('.body .t')].map((e) => getComputedStyle(e)[arguments[0]])"
    for colour, strength in zip(browser.js(style, "backgroundColor"), [-0.5, -4.0, -4.0, 1.0], strict=False):
        parts = [float(part) for part in re.findall(r"[\d.]+", colour.removeprefix("color(srgb"))][:3]
        shown = [part * 255 if colour.startswith("color") else part for part in parts]
        assert shown == pytest.approx([*bytes.fromhex(shade(strength, 4.0)[1:])], abs=1)
    assert browser.js(style, "borderBottomStyle") == ["dotted", "dotted", "dotted", "solid", "none"]
    assert browser.texts(".body .box") == [" = 4⏎"] and browser.texts(".body") == ["7-3 = 4⏎\nso no"]


def test_nothing_of_a_record_is_markup_or_code(browser, tmp_path):
    text = dict.fromkeys(("prompt", "method", "context", "fallback", "teacher_prompt"), NASTY)
    signals = {NASTY: [0.5] * 5, "__proto__": [0.25] * 5}
    nasty = replace(MIXED, tokens=[NASTY] * 5, tools={NASTY: 1, "__proto__": 2}, signals=signals, **text)
    browser.open(made(tmp_path, [nasty], [replace(nasty, method=NASTY + "2")]))
    browser.press("c", "o")
    browser.wait("document.querySelector('#onsets tbody').rows.length === 1")
    browser.press(ESCAPE)
    browser.hover(0)
    assert browser.js("[window.broken, document.querySelectorAll('img').length]") == [None, 0]
    assert browser.texts(".body .t")[0] == browser.texts(".question")[0] == NASTY
    assert {NASTY: "0.5", "  proto  ": "0.25"}.items() <= browser.numbers().items()


def test_the_page_opens_on_an_instructive_completion(browser, tmp_path):
    dull = replace(MIXED, advantage=0.0, credit=[0.0] * 5, weight=[1.0] * 5)
    browser.open(made(tmp_path, [dull, AGENT, dull]), place="", record=1)


def test_text_steps_failures_and_order_lead_to_records(browser, tmp_path):
    right = replace(MIXED, advantage=1.0, reward=1.0, credit=[1.0] * 5, weight=[1.0] * 5, context=None)
    late = replace(AGENT, step=7, group=9)
    wrong = replace(MIXED, step=7, group=3, tokens=["seven", " =", " 5\n", "so", " no"])
    browser.open(made(tmp_path, [right, late, wrong, MIXED]))
    browser.press("x")
    browser.wait("document.documentElement.dataset.shown === '2'")
    browser.press("x", "x")
    browser.wait("document.documentElement.dataset.shown === '2'")
    browser.fill("by-text", "SEVEN")
    browser.wait("document.getElementById('count').textContent === '1 of 4 records'")
    browser.fill("by-text", "")
    browser.fill("step-slider", "3")
    browser.wait("document.getElementById('count').textContent === '2 of 4 records'")
    browser.fill("step-slider", "0")
    browser.fill("order", "reward")
    browser.wait("document.documentElement.dataset.shown === '2'")
    assert browser.texts("#place") == ["1 of 4"], "after sorting it goes to the first"
