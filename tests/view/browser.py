"""A real browser for the tests of the viewer, and the records that it shows.

Debian's Chromium, without a window and without network.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gear_rl.records import Record, RecordWriter
from gear_rl.view.html import save_html

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)


DOWN, RIGHT, LEFT, ESCAPE, END, TAB = "\ue015", "\ue014", "\ue012", "\ue00c", "\ue010", "\ue004"
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

FLAT = Record(
    step=2, group=0, method="gear", prompt="flat", tokens=["a", "b"], ids=[8, 9], mask=[1, 1], turn=[0, 0],
    segment=[0, 0], reward=None, advantage=0.0, credit=[0.0, 0.0], weight=[1.0, 1.0], fallback="no_context",
)  # fmt: skip

EMPTY = replace(
    FLAT, prompt="nothing", tokens=[], ids=[], mask=[], turn=[], segment=[], credit=[], weight=[], step=3
)

TWIN = replace(
    MIXED, method="rlsd", step=7, segment=[0, 1, 2, 3, -1], credit=[-2.0, -1.0, -2.0, -2.0, 0.0],
    weight=[1.0, 0.5, 1.0, 1.0, 0.0], signals={"student_logprob": [-0.5, -1.0, 0.0, 0.0, 0.0]},
)  # fmt: skip


def missing() -> str:
    """Why there is no browser to test with; empty where there is one."""
    try:
        import selenium.webdriver  # noqa: F401
    except ImportError:
        return "selenium is not installed; pip install selenium"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"no {program} on this machine; apt-get install chromium chromium-driver"
    return ""


@contextmanager
def chromium(profile: Path, width: int = 1280, height: int = 860) -> Iterator["Browser"]:
    """A browser with a profile of its own; skips the test where there is none."""
    if reason := missing():
        pytest.skip(reason)
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What the tests do with a page, and nothing else of the driver."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, record: int = 0, ready: bool = True) -> None:
        """A fresh load of the page at a record; ``ready`` waits until that record is on the screen."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(f"{page.as_uri()}#record={record}")
        if ready:
            self.shown(record)

    def shown(self, record: int) -> None:
        self.wait(f"document.documentElement.dataset.shown === '{record}'")

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Until the JavaScript expression holds; what it was if it never does."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(
                lambda _: self.js(f"return {condition}")
            )
        except TimeoutException:
            raise AssertionError(f"never came true: {condition}; console: {self.complaints()}") from None

    def js(self, code: str, *values: object) -> Any:
        return self.driver.execute_script(code, *values)

    def text(self, selector: str) -> str:
        """What the element says, whether or not it is in view."""
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
        )

    def look(self, selector: str, what: str) -> str:
        return self.js(
            "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, what
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def hover(self, selector: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(
            self.driver.find_element("css selector", selector)
        ).perform()

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def fill(self, name: str, value: str) -> None:
        """Give a field of the filter a value, as a hand would."""
        self.js(
            "const field = document.getElementById(arguments[0]);"
            "if (field.type === 'checkbox') field.checked = arguments[1]; else field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', { bubbles: true }))",
            name,
            value,
        )

    def screen(self, width: int, height: int, mobile: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def dark(self, on: bool = True) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def complaints(self) -> list[str]:
        """What the console said since the page was opened: errors, warnings, refusals of the page's policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


def made(folder: Path, *files: list[Record]) -> Path:
    paths = [folder / f"{n}.jsonl" for n in range(len(files))]
    for path, records in zip(paths, files, strict=True):
        RecordWriter(path).write(records)
    save_html(paths, folder / "page.html")
    return folder / "page.html"


def token(t: int, side: int = 1) -> str:
    return f'article:nth-of-type({side}) .t[data-t="{t}"]'


def colour(text: str) -> tuple[int, ...]:
    """What a style sheet made of a colour: rgb() of 0 to 255, or color(srgb ...) of 0 to 1."""
    numbers = [float(part) for part in re.findall(r"[\d.]+(?:e-?\d+)?", text.removeprefix("color(srgb"))]
    return tuple(round(part * (255 if text.startswith("color") else 1)) for part in numbers[:3])


def contrast(browser: Browser, selector: str) -> float:
    """The ratio of the WCAG between the ink and the ground of an element."""

    def light(what: str) -> float:
        parts = [part / 255 for part in colour(browser.look(selector, what))]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    one, other = sorted((light("color"), light("backgroundColor")))
    return (other + 0.05) / (one + 0.05)


def numbers(browser: Browser) -> dict[str, str]:
    pairs = "[...document.querySelectorAll('#token .pair')]"
    return dict(browser.js(f"return {pairs}.map((e) => [...e.children].map((c) => c.textContent))"))


def listed(browser: Browser) -> list[int]:
    return browser.js("return list.order")
