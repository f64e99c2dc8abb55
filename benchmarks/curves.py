"""``benchmarks curves``: where credit matters.

Whole comparisons over the number of decisions of a completion, and over the rollouts of a step while the budget
of rollouts stays.
"""

# matplotlib is partly untyped.

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.results import Cells
from benchmarks.tables import lines_of
from gear_rl.cli.compare import run_plan_with_bar
from gear_rl.lab.comparison import findings_of, plan_of
from gear_rl.view.figures import style_axes, svg_of

METHODS = "gear,shuffled,random_onsets,rlsd,oar_g,entropy_forks"
TASK, TOTAL = "codebook", 640
"""The task, and the rollouts of every run."""
DECISIONS = {4: "easy", 8: "k8", 12: "default", 16: "k16", 24: "hard", 32: "k32"}
"""Decisions of a completion, and the tier that has them."""
_ORDER = ("easy", "default", "hard", 128, 8, 32, 64, "k32", "k8", "k16")
"""A tier with 16 rollouts a step, or the default tier with another number; the most telling ones come first."""
AXES = {"decisions": "decisions per completion", "rollouts": "rollouts per step"}
_LOOKS = {
    "oracle": ("#1a1a1a", "^"), "gear": ("#0072b2", "o"), "rlsd": ("#d55e00", "s"), "oar_g": ("#009e73", "v"),
    "entropy_forks": ("#cc79a7", "P"), "shuffled": ("#808080", "x"), "random_onsets": ("#808080", "+"),
}  # fmt: skip
_OTHERS = ("#e69f00", "#56b4e9")


def points() -> list[tuple[str, int]]:
    """Tier and rollouts per step of every comparison, once; both curves share their middle.

    >>> points()[:4], len(points())
    ([('easy', 16), ('default', 16), ('hard', 16), ('default', 128)], 10)
    """
    return [(one, 16) if isinstance(one, str) else ("default", one) for one in _ORDER]


def curves(
    methods: Sequence[str], seeds: int, folder: Path, *, jobs: int | None, console: Console, command: str
) -> Iterator[dict[str, Any]]:
    """Run every comparison and yield the result after each; runs that the folder has are not repeated."""
    found: list[dict[str, Any]] = []
    for number, (tier, rollouts) in enumerate(points(), 1):
        place = f"{tier}-{rollouts}"
        console.print(f"{number} of {len(points())}: {place}", highlight=False)
        budget = {"steps": TOTAL // rollouts, "rollouts": rollouts}
        plan = plan_of(methods, seeds=seeds, task=TASK, tier=tier, **budget)
        cells = folder / place / "cells"
        ran, tuned = run_plan_with_bar(plan, cells, jobs=jobs or os.cpu_count() or 1, console=console)
        findings = findings_of(plan, ran, tuned, command=command)
        one = findings.comparison.model_dump(mode="json", exclude={"cells"})
        decisions = next(number for number, name in DECISIONS.items() if name == tier)
        point = {"decisions": decisions, "rollouts": rollouts, "use": findings.settings["use"]}
        point |= {"rates": tuned} | one
        settings = {spec.name: spec.resolved for spec in plan.reported_specs()}
        found.append(point | {"resolved": settings, "versions": findings.versions})
        yield {"task": TASK, "total": TOTAL, "seeds": seeds, "command": command, "points": list(found)}


def methods_of(places: Iterable[Mapping[str, Any]]) -> list[str]:
    """The methods of all points, GRPO first; a point may lack some.

    >>> one, more = ({"verdicts": [{"method": m} for m in names]} for names in (["uniform", "rlsd"], ["gear"]))
    >>> methods_of([one, more])
    ['uniform', 'rlsd', 'gear']
    """
    return list(dict.fromkeys(verdict["method"] for place in places for verdict in place["verdicts"]))


def curve(result: Mapping[str, Any], axis: str) -> list[Mapping[str, Any]]:
    """The points of one axis that are there, in its order.

    >>> there = [{"decisions": 12, "rollouts": 16}, {"decisions": 4, "rollouts": 16}]
    >>> [p["decisions"] for p in curve({"points": there}, "decisions")], len(curve({"points": there}, "rollouts"))
    ([4, 12], 1)
    """
    fixed, value = ("rollouts", 16) if axis == "decisions" else ("decisions", 12)
    return sorted((point for point in result["points"] if point[fixed] == value), key=lambda p: p[axis])


def curves_cells(result: Mapping[str, Any]) -> Cells:
    """The gains over GRPO as a table, a column for each method."""
    names = methods_of(result["points"])
    rows: list[tuple[str, ...]] = []
    for axis in AXES:
        for point in curve(result, axis):
            verdicts = {v["method"]: v for v in point["verdicts"]}
            place = f"{point['decisions']} decisions, {point['rollouts']} rollouts"
            base = verdicts[names[0]]
            mean = "-" if base["mean"] is None else f"{base['mean']:.3f}"
            rows.append((place, mean + _lost(base), *(_gain(verdicts.get(n)) for n in names[1:])))
    title = f"Gain over GRPO, {result['task']}, {result['total']} rollouts, {result['seeds']} seeds"
    reports = [str(p["decisions"]) for p in result["points"] if p["use"] == "reporting"]
    below = [f"{', '.join(reports)} decisions: reports only; the others chose."] if reports else []
    return Cells(title, ("", "GRPO", *names[1:]), list(dict.fromkeys(rows)), below)


def gains_table(result: Mapping[str, Any]) -> str:
    """The gains of the oracle and of gear as lines of a page.

    Bold: the interval excludes 0, and the rate is GRPO's, which was run at no other (the oracle is a reference).
    """
    rows = [("decisions, rollouts a step", "GRPO", "`oracle`", "`gear`"), ("---",) * 4]
    for point in (point for axis in AXES for point in curve(result, axis)):
        verdicts = {v["method"]: v for v in point["verdicts"]}
        only = " (reports only)" if point["use"] == "reporting" else ""
        place = f"{point['decisions']}, {point['rollouts']}{only}"
        gains: list[str] = []
        for v in (verdicts["oracle"], verdicts["gear"]):
            low, high = v["difference_interval"]
            same = point["rates"][v["method"]]["rate"] == point["rates"]["uniform"]["rate"]
            bold = "**" * (low > 0 and (same or v["method"] == "oracle"))
            gains.append(f"{bold}{v['difference']:+.3f}{bold} ({low:+.2f} to {high:+.2f})")
        rows.append((place, f"{verdicts['uniform']['mean']:.3f}", *gains))
    return lines_of([*dict.fromkeys(rows)])


def _gain(verdict: Mapping[str, Any] | None) -> str:
    """The difference with its interval; a dash where every run failed."""
    if verdict is None or verdict["difference"] is None:
        return "-"
    ends = verdict["difference_interval"]
    around = "too few seeds" if ends is None else f"{ends[0]:+.2f}, {ends[1]:+.2f}"
    return f"{verdict['difference']:+.3f} ({around}){_lost(verdict)}"


def _lost(verdict: Mapping[str, Any]) -> str:
    """How many runs ended below their own start; older files do not count them."""
    lost = len(verdict.get("lost_seeds", ()))
    return f", {lost} lost" if lost else ""


def gains_svg(result: Mapping[str, Any], axis: str) -> str:
    """Gain over GRPO along one axis, with intervals."""
    return svg_of(partial(_figure, curve(result, axis), axis))


def _figure(there: Sequence[Mapping[str, Any]], axis: str) -> Any:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(6.4, 3.8), layout="constrained")
    plot = figure.subplots()
    methods = methods_of(there)[1:]
    others = iter(_OTHERS * len(methods))
    for n, method in enumerate(methods):
        colour, marker = _LOOKS.get(method) or (next(others), "D")
        shown = [(p[axis], v) for p in there for v in p["verdicts"] if v["method"] == method]
        shown = [(x, v) for x, v in shown if v["difference"] is not None]
        # Side by side, or the intervals of one place would hide each other.
        places = [x * 1.025 ** (n - len(methods) / 2) for x, _ in shown]
        gains = [v["difference"] for _, v in shown]
        plot.plot(places, gains, color=colour, marker=marker, ms=5, lw=1.3, label=method)
        for x, (_, v) in zip(places, shown, strict=True):
            if v["difference_interval"] is not None:
                plot.plot([x, x], v["difference_interval"], color=colour, lw=1, alpha=0.5)
    plot.axhline(0, color="#808080", lw=0.8, ls=(0, (3, 3)), zorder=0)
    plot.set_xscale("log", base=2)
    plot.set_xticks([p[axis] for p in there], [str(p[axis]) for p in there])
    plot.minorticks_off()
    # Every mean fits; an interval of three seeds may not.
    gaps = [v["difference"] for p in there for v in p["verdicts"] if v["difference"] is not None] + [0.0]
    plot.set_ylim(min(gaps) - 0.1, max(gaps) + 0.1)
    style_axes(plot, "", AXES[axis], "share right, difference to GRPO")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
