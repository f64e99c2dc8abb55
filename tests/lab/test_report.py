"""The report: the numbers of the findings on one page that needs nothing else, whatever the names in it."""

import copy
import json
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gear_rl.cli.compare import verdict_table
from gear_rl.lab import report
from gear_rl.lab.localisation import Located, localisation
from gear_rl.lab.plots import drawings, over_seeds
from gear_rl.lab.report import findings, save_plots, save_report
from gear_rl.lab.verdict import cell_of, compare

HOSTILE = '<script>alert("1")</script> $x_ & --> {{ 7 * 7 }}'


def cells(ends: dict[str, list[float | None]], **more: object) -> list[dict]:
    row = {
        "task": "chain", "tier": "default", "steps": 4, "n_eval": 100, "accuracy_before": 0.2, "seconds": 1.0,
        "held_out": [{"step": 2, "accuracy": 0.5, "n": 64}], "error": None,
        "curves": {"reward": [0.1, None, 0.3, 0.4], "entropy": [1.0, 0.5, 0.4, 0.3]},
    }  # fmt: skip
    return [
        cell_of(
            {**row, "method": m, "credit": m.title(), "seed": s, "accuracy_after": end, **more}
            | ({"error": f"RuntimeError: {HOSTILE}"} if end is None else {})
        )
        for m in ends
        for s, end in enumerate(ends[m])
    ]


ENDS = {
    "uniform": [0.60, 0.61, 0.62, 0.61],
    "gear": [0.69, 0.72, 0.72, None],
    "rlsd": [0.50, 0.49, 0.51, 0.50],
}


def places() -> dict:
    rows = [Located(auc=0.8 + n / 100, share=0.4, lift=2.0, rank=1.5, distance=n % 3) for n in range(9)]
    floor = [Located(auc=0.5, share=0.2, lift=1.0, rank=5.5, distance=None)] * 9
    return {
        "level": 0.95,
        "task": "chain",
        "tier": "default",
        "fault": "a wrong digit",
        "rows": [
            localisation("gear", [*rows, "no_fault"]),
            localisation("uniform", floor, role="floor"),
            localisation("oracle", rows, role="ceiling"),
        ],
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """Findings that nobody changes."""
    runs = cells(ENDS)
    return findings(
        title="Chain",
        command="gear compare --seeds 4",
        comparisons=[compare(runs)],
        localisations=[places()],
        settings={"seeds": 4},
        versions={"torch": "2.13.0"},
    )


@pytest.fixture
def found(made) -> dict[str, Any]:
    return copy.deepcopy(made)


class Page(HTMLParser):
    """Tags, tables as rows of texts, and whether every opened tag is closed."""

    VOID = ("meta", "br", "link", "img", "path", "use", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if any(tag in ("td", "th") for tag in self.open):
            self.tables[-1][-1][-1] += data

    def rows(self, column: str) -> dict[str, dict[str, str]]:
        """The table that has that column: first cell to heading to text."""
        [table] = [table for table in self.tables if column in table[0]]
        texts = [[" ".join(cell.split()) for cell in row] for row in table]
        return {row[0]: dict(zip(texts[0], row, strict=True)) for row in texts[1:]}


def page_of(found: dict[str, Any], folder: Path) -> tuple[str, Page]:
    save_report(found, folder / "deep" / "report.html")
    text = (folder / "deep" / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def shown(made, tmp_path_factory) -> tuple[str, Page]:
    """The page of the findings, drawn once for all that only look at it."""
    return page_of(made, tmp_path_factory.mktemp("report"))


def test_the_findings_are_json_and_come_back(found):
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    gear = found["comparisons"][0]["verdicts"][1]
    assert (gear["method"], gear["verdict"], gear["words"]) == ("gear", "better", "better at 3 seeds")
    assert found["comparisons"][0]["failed"] == [["gear", 3, f"RuntimeError: {HOSTILE}"]]
    assert [cell_of(row) for row in found["comparisons"][0]["cells"]] == [
        row | {"held_out": [{"step": 2, "accuracy": 0.5}]} for row in cells(ENDS)
    ]
    assert found["localisations"][0]["rows"][0]["left_out"] == {
        "no_fault": 1,
        "all_fault": 0,
        "not_finite": 0,
        "fallback": 0,
    }


def test_the_verdicts_stand_first_and_in_words(made, shown):
    text, page = shown
    assert page.tables[0][0][:2] == ["method", "verdict"]
    rows = page.rows("verdict")
    assert list(rows) == ["uniform", "gear", "rlsd"]
    assert rows["uniform"]["verdict"] == "baseline"
    assert rows["gear"]["verdict"] == "▲ better at 3 seeds"
    assert rows["rlsd"]["verdict"] == "▼ worse at 4 seeds"
    assert (rows["gear"]["final accuracy"], rows["gear"]["lost"]) == ("0.710", "0")
    assert rows["gear"]["difference, seed by seed"] == "+0.100"
    assert rows["gear"]["seeds"] == "3 paired, 1 failed"
    # Differences -0.1, -0.12, -0.11, -0.11; the numbers are those of the document, with a true minus.
    assert rows["rlsd"]["difference, seed by seed"] == "\N{MINUS SIGN}0.110"
    low, high = made["comparisons"][0]["verdicts"][2]["difference_interval"]
    assert rows["rlsd"]["its interval"] == f"{low:.3f} to {high:.3f}".replace("-", "\N{MINUS SIGN}")
    assert "gear compare --seeds 4" in text


def test_what_is_beside_the_verdict(made, shown):
    rows = shown[1].rows("area")
    # Area of an end e: 2 steps of mean 0.35, 2 of mean (0.5 + e) / 2; at 0.71 that is 0.4775.
    assert rows["gear"]["area"] == "0.477"
    for verdict in made["comparisons"][0]["verdicts"]:
        assert rows[verdict["method"]]["interquartile mean"] == f"{verdict['iqm']:.3f}"


def test_two_seeds_have_no_interval_and_lost_runs_are_counted_on_the_page_and_in_the_terminal(tmp_path):
    runs = cells({"uniform": [0.6, 0.61], "gear": [0.7, 0.1]})
    settings = {"place": "chain", "use": "choosing", "rollouts": 16}
    found = findings(title="t", command="c", comparisons=[compare(runs)], settings=settings)
    gear = page_of(found, tmp_path)[1].rows("verdict")["gear"]
    assert (gear["its interval"], gear["lost"], gear["p"]) == ("too few seeds", "1", "\N{EN DASH}")
    columns = {str(column.header): list(column.cells) for column in verdict_table(found).columns}
    assert (columns["95% interval"], columns["lost"]) == (["", "too few seeds"], ["0", "1"])
    for drawing in drawings(found):
        assert not drawing.draw().axes[0].collections
    bars = [line for line in drawings(found)[0].draw().axes[1].lines if len(set(line.get_xdata())) == 2]
    assert bars == []


def test_failed_and_missing_runs_are_listed(tmp_path):
    runs = cells(ENDS)[:-1]
    found = findings(title="t", command="c", comparisons=[compare(runs)])
    text, page = page_of(found, tmp_path)
    rows = page.rows("reason")
    assert rows["gear"] == {"method": "gear", "seed": "3", "reason": f"RuntimeError: {HOSTILE}"}
    assert rows["rlsd"] == {"method": "rlsd", "seed": "3", "reason": "no such run"}
    assert "1 run failed" in text
    assert "1 run missing" in text


def test_where_the_fault_is_found(shown):
    rows = shown[1].rows("lift")
    assert [rows[name]["role"] for name in rows] == ["method", "floor", "ceiling"]
    assert rows["gear"]["AUC"].startswith("0.840")
    assert rows["gear"]["completions"] == "9, 1 left out (no_fault)"
    assert rows["uniform"]["distance"] == "\N{EN DASH}"


def test_a_baseline_that_allows_no_verdict_is_told(tmp_path):
    runs = cells({"uniform": [1.0] * 3, "gear": [0.9] * 3})
    text, page = page_of(findings(title="t", command="c", comparisons=[compare(runs)]), tmp_path)
    assert "No verdict on any method: the baseline saturates (1.000; 100 problems" in text
    assert "▼" not in page.rows("verdict")["gear"]["verdict"]


def test_the_page_needs_nothing_else(shown):
    text, page = shown
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "img")]
    names = {name for _, attributes in page.tags for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "src"]
    targets = [a[n] for _, a in page.tags for n in ("href", "xlink:href") if n in a]
    assert [target for target in targets if not target.startswith("#")] == []
    assert re.sub(r"http://www\.w3\.org/\S+", "", text).count("://") == 0
    assert "@import" not in text
    assert all(part.startswith("#") for part in re.findall(r"url\(([^)]*)\)", text))


def test_no_id_stands_twice_and_every_reference_leads_somewhere(shown):
    text, page = shown
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert used
    assert set(used) <= set(ids)
    assert all(a["aria-labelledby"] in ids for _, a in page.tags if "aria-labelledby" in a)


def test_the_page_can_be_read_by_everybody(shown):
    text, page = shown
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table") == 7
    assert all(a.get("scope") in ("col", "row") for tag, a in page.tags if tag == "th")
    drawn = [a for tag, a in page.tags if tag == "svg"]
    assert len(drawn) == 3
    assert all(a["role"] == "img" and a["aria-label"] for a in drawn)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "#1a1a1a" not in text.split("</style>", 1)[1], "ink that a dark page would swallow"
    assert "#ffffff" not in text.split("</style>", 1)[1], "a white ground on a dark page"


def test_hostile_names_are_text_everywhere(tmp_path):
    runs = cells({"uniform": ENDS["uniform"], HOSTILE: ENDS["gear"]}, tier=HOSTILE, task="../x")
    rows = [localisation(HOSTILE, [Located(auc=0.5, share=0.5, lift=1.0, rank=1.0, distance=0)] * 3)]
    found = findings(
        title=HOSTILE, command=HOSTILE, comparisons=[compare(runs)],
        localisations=[{'level': 0.95, 'task': HOSTILE, 'tier': HOSTILE, 'fault': HOSTILE, 'rows': rows}],
        settings={HOSTILE: HOSTILE}, versions={HOSTILE: HOSTILE},
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text, page = page_of(found, tmp_path)
        paths = save_plots(found, tmp_path / "plots")
    assert "<script" not in text
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert "49" not in text.split("<h1>")[1].split("</h1>")[0], "a template in a name is no template"
    assert HOSTILE in page.rows("verdict")
    assert all(path.parent == tmp_path / "plots" for path in paths)


def test_any_name_can_be_drawn(tmp_path):
    names = ["_hidden", "$\\frac{$", "\u4e2d\u6587", "a\nb\x1b[31m", "", "x" * 200]
    runs = cells({"uniform": ENDS["uniform"], **dict.fromkeys(names, ENDS["rlsd"])})
    found = findings(title="t", command="c", comparisons=[compare(runs)])
    page_of(found, tmp_path)
    assert len(save_plots(found, tmp_path)) == 2


def test_plots_for_papers(found, tmp_path):
    paths = save_plots(found, tmp_path / "plots")
    stems = [f"chain-default-{kind}" for kind in ("final", "curves", "localisation")]
    assert [path.name for path in paths] == [f"{stem}.png" for stem in stems]
    first = [path.read_bytes() for path in paths]
    assert all(content.startswith(b"\x89PNG") for content in first)
    assert [path.read_bytes() for path in save_plots(found, tmp_path / "plots")] == first


def test_the_same_findings_give_the_same_page(found, tmp_path):
    assert page_of(found, tmp_path / "a")[0] == page_of(found, tmp_path / "b")[0]


def test_two_comparisons_of_one_task_have_files_of_their_own(tmp_path):
    runs = cells(ENDS)
    twice = [compare(runs), compare(runs, baseline="rlsd")]
    found = findings(title="t", command="c", comparisons=twice)
    assert len({path.name for path in save_plots(found, tmp_path)}) == 4
    page_of(found, tmp_path)


def test_the_figures_show_the_numbers(found):
    final, curves, located = [drawing.draw() for drawing in drawings(found)]
    left, right = final.axes
    dots = [sorted(line.get_xdata()) for line in left.lines if len(line.get_xdata()) > 2]
    assert dots == [sorted(end for end in ENDS[m] if end is not None) for m in ENDS]
    verdicts = found["comparisons"][0]["verdicts"]
    bars = [list(line.get_xdata()) for line in right.lines if len(line.get_xdata()) == 2][:2]
    assert bars == [v["difference_interval"] for v in verdicts[1:]]
    assert [text.get_text() for text in right.texts] == ["better", "worse"]
    panel = curves.axes[0]
    assert panel.get_title(loc="left") == "gear"
    base, ours = panel.lines
    assert list(base.get_xdata()) == [0, 2, 4]
    assert list(ours.get_ydata()) == pytest.approx([0.2, 0.5, 0.71])
    assert list(base.get_ydata()) == pytest.approx([0.2, 0.5, 0.61])
    [axes] = located.axes
    points = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1]
    assert points == pytest.approx([0.84, 0.5, 0.84])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["gear", "uniform (floor)", "oracle (ceiling)"]


def test_bands_need_three_seeds_and_stay_shares():
    ends = {"uniform": [0.60, 0.61, 0.62], "gear": [0.1, 0.9, None], "rlsd": [0.1, 0.9, 0.5]}
    runs = cells(ends)
    found = findings(title="t", command="c", comparisons=[compare(runs)])
    two, three = drawings(found)[1].draw().axes
    assert [len(axes.collections) for axes in (two, three)] == [1, 2], "the grey band is in both"
    heights = three.collections[1].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 1.0)


def test_a_curve_over_seeds_by_hand():
    rows = [[(0, 0.2), (5, 0.7), (9, 1.0)], [(0, 0.2), (5, 0.8)], [(0, 0.2), (5, 0.9), (7, 0.1)]]
    (first, second) = over_seeds(rows)
    assert first == (0, pytest.approx(0.2), pytest.approx((0.2, 0.2)))
    assert second == (5, pytest.approx(0.8), pytest.approx((0.5515862, 1.0484138), abs=1e-6))
    assert over_seeds([]) == []
    assert over_seeds([[(3, 0.5)]]) == [(3, 0.5, None)]


def test_a_report_of_nothing_but_failures(tmp_path):
    runs = cells({"uniform": [None, None], "gear": [None, None]})
    found = findings(title="t", command="c", comparisons=[compare(runs)])
    assert drawings(found) == []
    assert (
        page_of(found, tmp_path)[1]
        .rows("verdict")["gear"]["verdict"]
        .startswith("no verdict: too few seeds (0")
    )


def test_a_localisation_alone_or_an_empty_one(tmp_path):
    empty = {
        "level": 0.95,
        "task": "t",
        "tier": "t",
        "fault": "f",
        "rows": [localisation("gear", ["no_fault"])],
    }
    found = findings(title="t", command="c", localisations=[places(), empty])
    text, _ = page_of(found, tmp_path)
    assert text.count("<svg") == 1
    assert "verdict" not in text.split("<main>")[1]


def test_another_format_is_refused(tmp_path):
    for call in (save_report, save_plots):
        with pytest.raises(ValueError, match="format: 2, but this version reads 1"):
            call({"format": 2}, tmp_path / "x")


def test_nan_is_no_finding():
    with pytest.raises(ValueError, match="not JSON compliant"):
        findings(title="t", command="c", settings={"x": float("nan")})


RESULTS = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*/comparison.json"))


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.parent.name)
def test_committed_findings_are_read_whatever_version_made_them(file, tmp_path, monkeypatch):
    """The first had one sampled answer per problem, and did not say so. What is drawn others look at."""
    monkeypatch.setattr(report, "inline_svg", lambda *_: "<svg></svg>")
    found = json.loads(file.read_text(encoding="utf-8"))
    one = found["comparisons"][0]
    save_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{one['n_eval']} held-out problems" in page and ("sampled answer" in page) == ("samples" in one)
    again = compare(one["cells"], ceiling=one.get("ceiling"))
    assert [v["words"] for v in again["verdicts"]] == [v["words"] for v in one["verdicts"]]
    assert again["samples"] == one.get("samples", 1)


def test_several_samples_are_on_the_page(tmp_path):
    rows = cells(ENDS, samples=4)
    save_report(findings(title="t", command="c", comparisons=[compare(rows)]), tmp_path / "r.html")
    assert "100 held-out problems, 4 sampled answers to each." in (tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
