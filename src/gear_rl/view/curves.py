"""The curves of a run: what the trainer logged, over the steps, one small panel for each thing to watch.

Reads numbers under the names they were logged by. Knows no trainer and no record file.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gear_rl.view.picture import check_suffix, drawable, figure_style, write_figure

_BLUE, _ORANGE, _GREY, _INK = "#0072b2", "#d55e00", "#6b6b6b", "#1a1a1a"  # Okabe and Ito, for lines on white

_MANY = 30
"""From so many points on a curve is drawn pale, and its running mean over it."""


class Panel(NamedTuple):
    """One small diagram: its heading, the unit of its axis, and the log keys with what each is called."""

    heading: str
    unit: str
    curves: Mapping[str, str]
    bottom: float | None = 0.0
    factor: float = 1.0


PANELS = (
    Panel("Reward", "mean reward", {"reward": "reward"}, bottom=None),
    Panel(
        "Student and teacher",
        "nats per token",
        {"gear/divergence/mean": "divergence", "gear/entropy/mean": "student's entropy"},
    ),
    Panel("Completion length", "tokens", {"completions/mean_length": "length"}),
    Panel("Tokens in segments", "% of trained tokens", {"gear/segments/token_share": "share"}, factor=100.0),
    Panel("Segments", "per completion", {"gear/segments/per_completion": "segments"}),
    Panel("Largest weight", "times the advantage", {"gear/weight/max": "weight"}),
)


def save_curves(
    history: Sequence[Mapping[str, object]],
    path: str | Path,
    evaluations: Mapping[str, float] | None = None,
    title: str = "",
) -> None:
    """The curves of a run as a PNG or SVG file, whichever the suffix of ``path`` says.

    ``history`` is a trainer's log history, one mapping per logged step. A panel is drawn where a number was
    logged under one of its keys; rows without a step, missing keys, nan and infinities leave a gap. Of two
    rows of a step the later one counts.

    ``evaluations`` are held-out accuracies by name, in the order of the run: marks from the first step to the
    last, beside the reward if that lies between 0 and 1 as they do, else in a panel of their own.

    The same numbers give the same bytes. The directory is made; ``ValueError`` where nothing can be drawn, or
    for another suffix.

    >>> save_curves([{"step": 1, "loss": 0.5}], "curves.png")
    Traceback (most recent call last):
    ValueError: nothing to draw: no row of the history has a step and one of reward, gear/divergence/mean, ...
    """
    check_suffix(path)
    curves = {key: _curve(history, key, panel.factor) for panel in PANELS for key in panel.curves}
    curves = {key: points for key, points in curves.items() if points}
    if not curves:
        keys = ", ".join(key for panel in PANELS for key in panel.curves)
        raise ValueError(f"nothing to draw: no row of the history has a step and one of {keys}")
    marks = _marks(curves, evaluations or {})
    with figure_style():
        write_figure(_figure(curves, marks, drawable(title)), path)


def _curve(history: Sequence[Mapping[str, object]], key: str, factor: float) -> dict[float, float]:
    """Step to number, in the order of the steps."""
    points: dict[float, float] = {}
    for row in history:
        step, value = row.get("step"), row.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(value):
            points[float(step)] = value * factor
    return dict(sorted(points.items()))


def _marks(
    curves: Mapping[str, Mapping[float, float]], evaluations: Mapping[str, float]
) -> list[tuple[float, str, float]]:
    """Where on the run each evaluation stands, its name and its accuracy."""
    (first, width), gaps = _extent(curves), max(len(evaluations) - 1, 1)
    return [
        (first + width * n / gaps, drawable(name), value)
        for n, (name, value) in enumerate(evaluations.items())
        if math.isfinite(value)
    ]


def _extent(curves: Mapping[str, Mapping[float, float]]) -> tuple[float, float]:
    """The first step and the length of the run; a run of one step still has a before and an after."""
    steps = [step for points in curves.values() for step in points]
    return min(steps), max(steps) - min(steps) or 1.0


def _figure(
    curves: Mapping[str, Mapping[float, float]], marks: list[tuple[float, str, float]], title: str
) -> Any:
    from matplotlib.figure import Figure

    panels = [panel for panel in PANELS if any(key in curves for key in panel.curves)]
    reward = curves.get("reward", {})
    beside = bool(reward) and min(reward.values()) >= 0 and max(reward.values()) <= 1
    num_panels = len(panels) + bool(marks and not beside)
    num_columns = {1: 1, 2: 2, 4: 2, 7: 4}.get(num_panels, 3)
    num_rows = math.ceil(num_panels / num_columns)
    size = {1: 5.0, 2: 8.0}.get(num_columns, 10.2), 2.3 * num_rows + 0.4 * bool(title)
    figure: Any = Figure(figsize=size, layout="constrained")
    every: list[Any] = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    first, width = _extent(curves)
    for axes in every[:num_panels]:
        axes.set_xlim(first - 0.04 * width, first + 1.04 * width)
    for axes in every[num_panels:]:
        axes.set_axis_off()
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold", parse_math=False)
    for axes, panel in zip(every, panels, strict=False):
        _draw(axes, panel, curves)
    if marks and beside:
        every[0].set_ylabel("mean reward · ◆ accuracy", fontsize=8, color=_GREY)
        _draw_marks(every[0], marks, reward, 0.2 * width)
    elif marks:
        _style(every[len(panels)], "Held-out accuracy", "share correct")
        _draw_marks(every[len(panels)], marks, {}, 0.0)
    return figure


def _draw(axes: Any, panel: Panel, curves: Mapping[str, Mapping[float, float]]) -> None:
    _style(axes, panel.heading, panel.unit)
    smoothed = 0
    for (key, name), colour in zip(panel.curves.items(), (_BLUE, _ORANGE), strict=False):
        if key not in curves:
            continue
        steps, values = list(curves[key]), list(curves[key].values())
        if len(values) < _MANY:
            axes.plot(steps, values, color=colour, lw=1.6, marker="o", ms=3, label=name)
            continue
        smoothed = max(2, len(values) // 20)
        axes.plot(steps, values, color=colour, lw=0.8, alpha=0.3)
        axes.plot(steps, _running_mean(values, smoothed), color=colour, lw=1.8, label=name)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize=8, handlelength=1.2)
    if smoothed:
        axes.set_title(f"mean of {smoothed}", loc="right", fontsize=7, color=_GREY)
    if panel.bottom is not None:
        axes.set_ylim(bottom=panel.bottom, top=axes.get_ylim()[1] * 1.05 or 1.0)


def _style(axes: Any, heading: str, unit: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(heading, loc="left", fontsize=9.5, weight="bold")
    axes.set_xlabel("optimizer step", fontsize=8, color=_GREY)
    axes.set_ylabel(unit, fontsize=8, color=_GREY)
    axes.tick_params(labelsize=8, color=_GREY, labelcolor=_GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.grid(axis="y", color="#eeeeee", lw=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def _draw_marks(
    axes: Any, marks: list[tuple[float, str, float]], reward: Mapping[float, float], reach: float
) -> None:
    """The accuracies, each name on the side where the reward, within ``reach`` steps, is not."""
    axes.set_ylim(-0.03, 1.13)
    halo = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    for place, (step, name, accuracy) in enumerate(marks):
        axes.plot([step], [accuracy], "D", color=_ORANGE, ms=5, clip_on=False, gid=f"accuracy-{place}")
        side = "left" if place == 0 else "right" if place == len(marks) - 1 else "center"
        near = [value for where, value in reward.items() if abs(where - step) <= reach]
        below = accuracy > 0.15 and bool(near) and math.fsum(near) / len(near) > accuracy
        away: dict[str, Any] = {"xytext": (0, -13 if below else 6), "textcoords": "offset points"}
        text = f"{name} {100 * accuracy:.0f}%"
        axes.annotate(
            text, (step, accuracy), fontsize=8, color=_ORANGE, parse_math=False, ha=side, bbox=halo, **away
        )


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the last ``window`` values at each place, of fewer at the beginning."""
    return [
        math.fsum(values[max(0, n + 1 - window) : n + 1]) / min(n + 1, window) for n in range(len(values))
    ]
