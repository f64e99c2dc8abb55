"""The report: the numbers of the findings on one page that needs nothing else, whatever the names in it."""

import re
import warnings
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gear_rl.lab.cells import RUNS, Cell
from gear_rl.lab.findings import Findings, save, save_report
from gear_rl.lab.verdict import compare
from lab.test_verdict import cell

HOSTILE = '<script>alert("1")</script> $x_ & --> {{ 7 * 7 }}'
ENDS = {
    "uniform": [0.60, 0.61, 0.62, 0.61],
    "gear": [0.69, 0.72, 0.72, None],
    "stare": [0.68, 0.69, 0.70, 0.69],
    "rlsd": [0.50, 0.49, 0.51, 0.50],
}


def cells(ends: dict[str, list[float | None]], **more: Any) -> list[Cell]:
    curves = {"reward": [0.1, None, 0.3, 0.4], "entropy": [1.0, 0.5, 0.4, 0.3]}
    row = {"steps": 4, "n_eval": 100, "held_out": [(2, 0.5)], "curves": curves}
    return [
        cell(m, s, end, 0.2, **row, **more, error=f"RuntimeError: {HOSTILE}" if end is None else None)
        for m in ends
        for s, end in enumerate(ends[m])
    ]


@pytest.fixture(scope="module")
def made() -> Findings:
    return Findings(
        title="Chain",
        command="gear compare --seeds 4",
        comparison=compare(cells(ENDS)[:-1]),
        settings={"seeds": 4},
        versions={"torch": "2.13.0"},
    )


def page_of(found: Findings, folder: Path) -> str:
    save_report(found, folder / "deep" / "report.html")
    return (folder / "deep" / "report.html").read_text(encoding="utf-8")


def rows_of(page: str, column: str) -> dict[str, dict[str, str]]:
    """The table that has that column: first cell to heading to text."""
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr")[1:]]
        texts = [[" ".join(unescape(re.sub("<.*?>", "", cell)).split()) for cell in row] for row in cells]
        if column in texts[0]:
            return {row[0]: dict(zip(texts[0], row, strict=True)) for row in texts[1:]}
    raise KeyError(column)


@pytest.fixture(scope="module")
def page(made, tmp_path_factory) -> str:
    return page_of(made, tmp_path_factory.mktemp("report"))


def test_the_numbers_of_the_page_are_those_of_the_findings(made, page):
    rows = rows_of(page, "verdict")
    verdicts = [row["verdict"] for row in rows.values()]
    failed = "no verdict: 1 of 4 seeds failed"
    assert verdicts == [failed, "▲ better at 4 seeds", "baseline", "▼ worse at 3 seeds"], "by their means"
    assert list(rows["gear"])[1] == "verdict" and "too few seeds" not in page
    gear, rlsd = rows["gear"], rows["rlsd"]
    assert (gear["final accuracy"], gear["lost"], gear["seeds"]) == ("0.710", "0", "3 paired, 1 failed")
    assert gear["difference, seed by seed"] == "+0.100"
    # Differences -0.1, -0.12, -0.11; with a true minus.
    assert rlsd["difference, seed by seed"] == "\N{MINUS SIGN}0.110"
    low, high = made.comparison.verdicts[-1].difference_interval
    assert rlsd["its interval"] == f"{low:.3f} to {high:.3f}".replace("-", "\N{MINUS SIGN}")
    reasons = rows_of(page, "reason")
    assert reasons["gear"] == {"method": "gear", "seed": "3", "reason": f"RuntimeError: {HOSTILE}"}
    assert reasons["rlsd"] == {"method": "rlsd", "seed": "3", "reason": "no such run"}


def test_the_page_needs_nothing_else(page):
    assert page.count("<svg") == 2
    assert not re.search(r"<(script|link|iframe|object|img)\b|\s(on\w+|src)=|@import", page)
    ids = re.findall(r'\sid="([^"]*)"', page)
    targets = re.findall(r'href="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    assert len(ids) == len(set(ids)) and set(targets) <= {f"#{name}" for name in ids}
    assert "://" not in re.sub(r"http://www\.w3\.org/\S+", "", page)


def test_hostile_names_are_text_everywhere(tmp_path):
    names = [HOSTILE, "_hidden", "$\\frac{$", "\u4e2d\u6587", "a\nb\x1b[31m", "", "x" * 200]
    runs = cells(
        {"uniform": ENDS["uniform"], **dict.fromkeys(names, ENDS["gear"])}, tier=HOSTILE, task="../x"
    )
    found = Findings(
        title=HOSTILE, command=HOSTILE, settings={HOSTILE: HOSTILE}, versions={HOSTILE: HOSTILE},
        comparison=compare(runs),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = page_of(found, tmp_path)
        save(found, tmp_path)
    assert "<script" not in page
    assert "49" not in page.split("<h1>")[1].split("</h1>")[0], "a template in a name is no template"
    assert HOSTILE in rows_of(page, "verdict")
    assert sorted(file.name for file in tmp_path.iterdir()) == [RUNS, "deep", "report.html"]
