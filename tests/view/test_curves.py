"""The curves of a run: a panel for each thing that was logged, and a clear error where nothing was."""

import math
import re

import pytest

from gear_rl.view.curves import PANELS, curves_svg

ALL = {key: 0.5 for panel in PANELS for key in panel.curves}


def headings(svg: str) -> list[str]:
    """matplotlib writes each drawn string as a comment into the SVG."""
    comments = re.findall(r"<!-- (.*?) -->", svg)
    known = {panel.heading for panel in PANELS}
    return [comment for comment in comments if comment in known]


@pytest.mark.parametrize("key", ALL)
def test_a_panel_appears_with_any_one_of_its_keys_and_alone(key):
    svg = curves_svg([{"step": 1, key: 0.5}, {"step": 2, "loss": 1.0}, {key: 9.0}])
    assert headings(svg) == [panel.heading for panel in PANELS if key in panel.curves]


@pytest.mark.parametrize("history", [[], [{"reward": 1.0}], [{"step": 1, "reward": math.nan, "loss": 2.0}]])
def test_nothing_to_draw_says_what_is_missing(history):
    with pytest.raises(
        ValueError, match=r"nothing to draw.*step.*reward.*gear/divergence.*; .*logging_steps"
    ):
        curves_svg(history)
