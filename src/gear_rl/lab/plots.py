"""The figures of a report, from the same numbers as its tables."""

# matplotlib is partly untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import escape
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gear_rl.lab.cells import Cell, Curve
from gear_rl.lab.statistics import Interval, mean_interval
from gear_rl.lab.verdict import Comparison
from gear_rl.view.figures import BLUE, INK, ORANGE, QUIET, style_axes, svg_of
from gear_rl.view.terminal import shorten_text, visible_text


class Drawing(NamedTuple):
    """A figure that is drawn when it is needed."""

    label: str
    """Its content, in words."""
    draw: Callable[[], Any]


def drawings(c: Comparison) -> list[Drawing]:
    """Every figure that the findings have numbers for, in the order of the page."""
    cells = [cell for cell in c.cells if cell.error is None]
    if not cells:
        return []
    against = f"every method of {c.task}, {c.tier}, against {c.baseline}"
    label = f"Final {_measure(c)} of {against}: a dot per seed, means with intervals, differences"
    more = f"Held-out {_measure(c)} over the steps of {against}: mean over seeds with intervals"
    return [Drawing(label, partial(_final, c, cells)), Drawing(more, partial(_curves, c, cells))]


def _measure(c: Comparison) -> str:
    return "reward" if c.outcome == "reward" else "accuracy"


def inline_svg(figure: Drawing, name: str) -> str:
    """The figure as an SVG element of a page, in the page's colours; its ids begin with ``name``."""
    svg = svg_of(figure.draw, transparent=True)
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace(QUIET, "var(--quiet)")
    svg = svg.replace(BLUE, "var(--blue)").replace(ORANGE, "var(--orange)")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.label)}"', 1)


def _final(c: Comparison, cells: Sequence[Cell]) -> Any:
    figure = Figure(figsize=(8.6, 0.9 + 0.36 * len(c.verdicts)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for y, verdict in enumerate(c.verdicts):
        ends = [cell.curve(c.outcome)[-1][1] for cell in cells if cell.method == verdict.method]
        left.plot(ends, [y + 0.2] * len(ends), "o", color=QUIET, ms=3.5, mec="none", alpha=0.7)
        if verdict.mean is not None:
            _bar(left, y - 0.08, verdict.mean, verdict.interval, QUIET if y == 0 else BLUE)
        shown = verdict.verdict in ("better", "worse")
        if verdict.difference is not None:
            _bar(right, y, verdict.difference, verdict.difference_interval, ORANGE if shown else BLUE)
        if shown:
            right.annotate(
                verdict.verdict, (verdict.difference, y), (0, 6), textcoords="offset points", ha="center",
                color=INK, fontsize=7.5,
            )  # fmt: skip
    if c.verdicts[0].mean is not None:
        _reference(left, c.verdicts[0].mean)
    _reference(right, 0.0)
    level = f"{100 * c.level:g} %"
    unit = "mean reward" if c.outcome == "reward" else "share correct"
    style_axes(left, f"Final {_measure(c)}", f"{unit} · {level} interval of each mean", grid="x")
    own = f"; {_name(c.ceiling)} not corrected" if c.ceiling else ""
    held = f"intervals hold together at {level}{own}"
    style_axes(right, f"Difference to {_name(c.baseline)}", held, grid="x")
    _rows_axis(left, [_name(verdict.method) for verdict in c.verdicts])
    right.tick_params(axis="y", length=0)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return figure


def over_seeds(rows: Sequence[Curve]) -> list[tuple[int, float, Interval | None]]:
    """Step, mean over the seeds and its interval, at the steps that every seed has.

    >>> over_seeds([[(0, 0.25), (5, 1.0)], [(0, 0.25), (5, 0.5), (7, 0.5)]])[1][:2]
    (5, 0.75)
    """
    by_step = [dict(row) for row in rows]
    shared = sorted(set.intersection(*map(set, by_step))) if by_step else []
    points = [(step, [row[step] for row in by_step]) for step in shared]
    return [(step, math.fsum(values) / len(values), mean_interval(values)) for step, values in points]


def _curves(c: Comparison, cells: Sequence[Cell]) -> Any:
    points: dict[str, list[tuple[int, float, Interval | None]]] = {}
    for method in (verdict.method for verdict in c.verdicts):
        curves = [cell.curve(c.outcome) for cell in cells if cell.method == method]
        if row := over_seeds(curves):
            points[method] = row
    others = [method for method in points if method != c.baseline] or list(points)
    columns = min(4, len(others))
    rows = math.ceil(len(others) / columns)
    figure = Figure(figsize=(max(3.4, 2.15 * columns), 0.3 + 1.8 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(others) :]:
        axes.set_axis_off()
    for axes, method in zip(grid.flat, others, strict=False):
        for name in dict.fromkeys((c.baseline, method)):
            row, colour = points.get(name, []), QUIET if name == c.baseline else BLUE
            steps = [step for step, _, _ in row]
            axes.plot(steps, [mean for _, mean, _ in row], color=colour, lw=1.6, marker="o", ms=2.5)
            ends = [interval for _, _, interval in row if interval is not None]
            if ends:
                low, high = [end.low for end in ends], [end.high for end in ends]
                if c.outcome != "reward":
                    low, high = [max(0.0, end) for end in low], [min(1.0, end) for end in high]
                axes.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
        style_axes(axes, _name(method), "")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    figure.supxlabel(f"optimizer step · grey: {_name(c.baseline)}", fontsize=8, color=QUIET)
    figure.supylabel(f"held-out {_measure(c)}", fontsize=8, color=QUIET)
    return figure


def _name(name: str) -> str:
    return shorten_text(visible_text(name), 28) or "?"


def _rows_axis(axes: Any, names: Sequence[str]) -> None:
    """A row for each name, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", labelcolor=INK, length=0)


def _bar(axes: Any, y: float, mean: float, interval: Sequence[float] | None, colour: str) -> None:
    if interval is not None:
        axes.plot(interval, [y, y], color=colour, lw=2.2, solid_capstyle="butt")
    axes.plot([mean], [y], "o", color=colour, ms=6, mec="none")


def _reference(axes: Any, x: float) -> None:
    axes.axvline(x, color=QUIET, lw=0.8, ls=(0, (3, 3)), zorder=0)
