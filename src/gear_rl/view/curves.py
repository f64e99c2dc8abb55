"""The curves of a run: the trainer's log over the steps, in small panels."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gear_rl.view.figures import BLUE, ORANGE, QUIET, style_axes, svg_of

_MANY = 30
"""A curve of so many points is drawn pale, with its running mean over it."""

_Points = dict[float, float]


class Panel(NamedTuple):
    """One small diagram: its heading, the unit of its axis, and the name of each log key."""

    heading: str
    unit: str
    curves: Mapping[str, str]
    factor: float = 1.0


PANELS = (
    Panel("Reward", "mean reward", {"reward": "reward"}),
    Panel("Held-out reward", "mean reward", {"eval_reward": "reward"}),
    Panel(
        "Student, teacher",
        "nats per token",
        {"gear/divergence/mean": "divergence", "gear/entropy/mean": "student's entropy"},
    ),
    Panel("Groups without a spread", "% of groups", {"frac_reward_zero_std": "share"}, factor=100.0),
    Panel("Completion length", "tokens", {"completions/mean_length": "length"}),
    Panel("Tokens in segments", "% of trained tokens", {"gear/segments/token_share": "share"}, factor=100.0),
    Panel("Segments", "per completion", {"gear/segments/per_completion": "segments"}),
    Panel("Largest weight", "times the advantage", {"gear/weight/max": "weight"}),
)


def curves_svg(history: Sequence[Mapping[str, object]]) -> str:
    """The curves of a run as an SVG element, for a page or a file.

    ``history`` is a trainer's log history: a panel is drawn where a number was logged under one of its keys, and
    the later of two rows of a step counts. The same numbers give the same text. ``ValueError`` if nothing can be
    drawn.

    >>> curves_svg([{"step": 1, "loss": 0.5}])
    Traceback (most recent call last):
    ValueError: nothing to draw: no row of the history has a step and one of reward, eval_reward, ...
    """
    return svg_of(partial(_figure, history))


def _curve(history: Sequence[Mapping[str, object]], key: str, factor: float) -> _Points:
    """Step to number, in the order of the steps."""
    points: _Points = {}
    for row in history:
        step, value = row.get("step"), row.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(value):
            points[float(step)] = value * factor
    return dict(sorted(points.items()))


def _figure(history: Sequence[Mapping[str, object]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    curves = {key: _curve(history, key, panel.factor) for panel in PANELS for key in panel.curves}
    panels = [panel for panel in PANELS if any(curves[key] for key in panel.curves)]
    if not panels:
        raise ValueError(
            f"nothing to draw: no row of the history has a step and one of {', '.join(curves)}; a run that is "
            "shorter than logging_steps has none"
        )
    num_columns = len(panels) if len(panels) < 4 else math.ceil(len(panels) / 2)
    num_rows = math.ceil(len(panels) / num_columns)
    figure: Any = Figure(figsize=(min(10.2, 4.0 * num_columns), 2.3 * num_rows), layout="constrained")
    places: list[Any] = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axes, panel in zip(places, panels, strict=False):
        style_axes(axes, panel.heading, "optimizer step", panel.unit)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        for (key, name), colour in zip(panel.curves.items(), (BLUE, ORANGE), strict=False):
            _draw(axes, curves[key], name, colour)
        if len(panel.curves) > 1:
            axes.legend(frameon=False, handlelength=1.2)
        if "eward" not in panel.heading:
            axes.set_ylim(bottom=0.0, top=axes.get_ylim()[1] * 1.05 or 1.0)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Any, points: _Points, name: str, colour: str) -> None:
    steps, values = list(points), list(points.values())
    if len(values) < _MANY:
        axes.plot(steps, values, color=colour, lw=1.6, marker="o", ms=3, label=name)
        return
    window = max(2, len(values) // 20)
    recent = [values[max(0, n + 1 - window) : n + 1] for n in range(len(values))]
    axes.plot(steps, values, color=colour, lw=0.8, alpha=0.3)
    axes.plot(steps, [math.fsum(some) / len(some) for some in recent], color=colour, lw=1.8, label=name)
    axes.set_xlabel(f"optimizer step (line: mean of {window})", color=QUIET)
