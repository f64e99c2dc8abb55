"""What is made of a page: the text between ``<!-- NAME -->`` and ``<!-- /NAME -->``; the rest is hand-written."""

import json
import re
from pathlib import Path

from benchmarks.coverage import coverage_cells
from benchmarks.curves import gains_table
from benchmarks.methods_page import costs_table
from benchmarks.signals import signals_cells
from benchmarks.step import step_cells
from benchmarks.tables import RESULTS, TABLES
from gear_rl.cli.methods import COSTS
from gear_rl.lab.findings import read_runs
from gear_rl.lab.plots import drawings
from gear_rl.view.figures import svg_of

ROOT = RESULTS.parent
MEASURED = {
    "signals": (signals_cells, "bench_signals"),
    "step": (step_cells, "bench_step"),
    "coverage": (coverage_cells, "coverage"),
}
"""The table of a mark, and the file of its numbers."""
PAGES = (
    "README.md",
    "docs/results/README.md",
    "results/README.md",
)
FIGURES = ("codebook_hard_catalogue", "sums_32")
"""Comparisons whose ends are drawn."""


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
    else:
        text = TABLES[name].markdown()
    return f"<!-- {name} -->\n{text}<!-- /{name} -->"


def renew_pages() -> list[Path]:
    """Write all pages and their figures anew."""
    for name in FIGURES:
        final, *_ = drawings(read_runs(RESULTS / f"{name}.jsonl"))
        (ROOT / "docs" / "results" / f"{name}.svg").write_text(svg_of(final.draw), encoding="utf-8")
    paths = [ROOT / page for page in PAGES]
    for path in paths:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return paths
