"""What is made of a page: the text between ``<!-- NAME -->`` and ``<!-- /NAME -->``; the rest is hand-written."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.coverage import coverage_cells
from benchmarks.curves import gains_table
from benchmarks.methods_page import costs_table, section_of
from benchmarks.signals import signals_cells
from benchmarks.step import step_cells
from benchmarks.tables import RESULTS, TABLES
from gear_rl.cli.methods import COSTS
from gear_rl.lab.findings import read_runs
from gear_rl.lab.plots import drawings
from gear_rl.methods import METHODS
from gear_rl.view.figures import BLUE, ORANGE, QUIET, style_axes, svg_of

ROOT = RESULTS.parent
MEASURED = {
    "signals": (signals_cells, "bench_signals"),
    "step": (step_cells, "bench_step_hf"),
    "coverage": (coverage_cells, "coverage"),
}
"""The table of a mark, and the file of its numbers."""
PAGES = (
    "README.md",
    "docs/methods.md",
    "docs/results/README.md",
    "results/README.md",
)
FIGURES = ("codebook_hard_catalogue", "sums_32")
"""Comparisons whose ends are drawn."""
REWARDS = {
    "uniform": ("GRPO", QUIET),
    "oracle": ("perfect credit", ORANGE),
    "gear": ("gear", BLUE),
    "tokens": ("gear:tokens", "#009e73"),
}
"""Methods of ``forms`` whose rewards in training are drawn."""


def renewed(page: str) -> str:
    """The page with all that is made, made anew; ``KeyError`` for a mark of no table.

    >>> renewed("A page without marks.")
    'A page without marks.'
    """
    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", _made, page, flags=re.DOTALL)


def _made(mark: re.Match[str]) -> str:
    name = mark[1]
    if name in MEASURED:
        cells_of, file = MEASURED[name]
        result = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
        text = cells_of(result).markdown(result)
    elif name == "costs":
        text = costs_table(json.loads(COSTS.read_text(encoding="utf-8")))
    elif name == "curves":
        text = gains_table(json.loads((RESULTS / "curves.json").read_text(encoding="utf-8")))
    elif name.startswith("method-"):
        text = section_of(METHODS[name.removeprefix("method-")])
    else:
        text = TABLES[name].markdown()
    return f"<!-- {name} -->\n{text}<!-- /{name} -->"


def _rewards_of_forms() -> Any:
    """Rewards in training over rollouts: a thin line a seed, a thick one their mean."""
    runs = read_runs(RESULTS / "forms.jsonl")
    steps = range(1, 1 + runs.comparison.steps)
    rollouts = [step * runs.settings["rollouts"] for step in steps]
    figure: Any = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for method, (name, colour) in REWARDS.items():
        curves = [cell.curves["reward"] for cell in runs.comparison.cells if cell.method == method]
        for rewards in curves:
            axes.plot(rollouts, rewards, color=colour, lw=0.7, alpha=0.35)
        mean = [statistics.fmean(rewards) for rewards in zip(*curves, strict=True)]
        axes.plot(rollouts, mean, color=colour, lw=2, label=f"{name} ({len(curves)} seeds)")
    style_axes(axes, "", "rollouts", "mean reward of a step's rollouts")
    axes.legend(frameon=False)
    return figure


def renew_pages() -> list[Path]:
    """Write all pages and their figures anew."""
    drawn = ROOT / "docs" / "results"
    (drawn / "forms.svg").write_text(svg_of(_rewards_of_forms), encoding="utf-8")
    for name in FIGURES:
        final, *_ = drawings(read_runs(RESULTS / f"{name}.jsonl").comparison)
        (drawn / f"{name}.svg").write_text(svg_of(final.draw), encoding="utf-8")
    paths = [ROOT / page for page in PAGES]
    for path in paths:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return paths
