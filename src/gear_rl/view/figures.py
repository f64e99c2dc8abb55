"""How every figure is drawn: in one style, as SVG. Palette of Okabe and Ito."""

# matplotlib is partly untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import io
import warnings
from collections.abc import Callable
from typing import Any, cast

INK, QUIET, BLUE, ORANGE, RULE = "#1a1a1a", "#6b6b6b", "#0072b2", "#d55e00", "#808080"
_STYLE = {
    "svg.hashsalt": "gear",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "figure.facecolor": "white",
    "text.color": INK,
}


def svg_of(draw: Callable[[], Any], **options: Any) -> str:
    """The drawn figure as an SVG element, a page's or a file's; the same numbers give the same text.

    matplotlib's own defaults count, not the user's.

    >>> from matplotlib.figure import Figure
    >>> svg_of(Figure)[:4], svg_of(Figure) == svg_of(Figure)
    ('<svg', True)
    """
    from matplotlib import style

    content = io.StringIO()
    style_context = cast(Any, style).context(["default", _STYLE])
    # A missing glyph is drawn as a box, without a warning.
    with warnings.catch_warnings(action="ignore", category=UserWarning), style_context:
        draw().savefig(content, format="svg", metadata={"Date": None, "Creator": None}, **options)
    text = content.getvalue()
    return text[text.index("<svg") :]


def style_axes(axes: Any, title: str, xlabel: str, ylabel: str = "", grid: str = "y") -> None:
    """Title and labels; the lines recede behind the numbers."""
    axes.set_title(title, loc="left", fontsize=9.5, weight="bold")
    axes.set_xlabel(xlabel, color=QUIET)
    axes.set_ylabel(ylabel, color=QUIET)
    axes.tick_params(color=QUIET, labelcolor=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    axes.grid(axis=grid, color=RULE, alpha=0.25, lw=0.8)
    axes.set_axisbelow(True)
