"""One browser for all tests of the viewer, and the page that most of them read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from view.browser import AGENT, EMPTY, FLAT, MIXED, TWIN, Browser, chromium, made


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(running: Browser) -> Iterator[Browser]:
    """Every test begins on a light desktop and ends with a silent console."""
    running.screen(1280, 860)
    running.dark(False)
    yield running
    assert running.complaints() == []


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records 0 to 3 of gear, then 4 of rlsd: the completion of record 0 again, from another file."""
    return made(tmp_path_factory.mktemp("page"), [MIXED, AGENT, FLAT, EMPTY], [TWIN])
