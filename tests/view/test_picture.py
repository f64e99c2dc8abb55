"""The picture: boxes where the tokens are, in the colour of their credit, in a file that is always the same."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from gear_rl.records import Record
from gear_rl.view.picture import MOST_LINES, save_picture
from gear_rl.view.terminal import shade

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def record() -> Record:
    """Six tokens; tokens 1 to 3 are a segment, the last is tool output."""
    weight = [0.5, 1.5, 1.5, 1.5, 0.5, 0.0]
    return Record(
        step=2, group=0, method="gear", prompt="Pay $5 & <b>", tokens=["$a", " <b", "&", "_c$", "\\d", "ok"],
        ids=[0, 1, 2, 3, 4, 5], mask=[1, 1, 1, 1, 1, 0], turn=[0, 0, 0, 0, 0, -1],
        segment=[0, 1, 1, 1, 2, -1], reward=1.0, advantage=0.5, credit=[0.5 * w for w in weight],
        weight=weight, signals={"divergence": [0.0, 2.0, 0.1, 0.0, 0.0, 7.0]},
    )  # fmt: skip


def drawn(record: Record | list[Record], path: Path) -> dict[str, ElementTree.Element]:
    save_picture(record if isinstance(record, list) else [record], path)
    tree = ElementTree.fromstring(path.read_text())
    groups = [group for group in tree.iter(f"{SVG}g") if "-" in group.get("id", "")]
    assert len({group.get("id") for group in groups}) == len(groups)
    return {group.get("id", ""): group for group in groups}


def path_of(group: ElementTree.Element) -> ElementTree.Element:
    found = group.find(f".//{SVG}path")
    assert found is not None
    return found


def colour(group: ElementTree.Element) -> str:
    found = re.search(r"fill: (#\w{6})", path_of(group).get("style", ""))
    assert found
    return found[1]


def extent(group: ElementTree.Element) -> tuple[float, float]:
    """Left and right edge of what the group draws."""
    x = [float(n) for p in group.iter(f"{SVG}path") for n in re.findall(r"[ML] ([\d.]+)", p.get("d", ""))]
    return min(x), max(x)


def test_tokens_are_boxes_of_their_colour_and_a_segment_has_an_outline_and_an_onset(record, tmp_path):
    groups = drawn(replace(record, credit=[*record.credit[:5], 3.0]), tmp_path / "p.svg")
    assert sorted(name for name in groups if name.startswith("token-")) == [f"token-0-{t}" for t in range(6)]
    colours = [colour(groups[f"token-0-{t}"]) for t in range(6)]
    assert colours == [*(shade(strength, 2.0) for strength in (0.5, 1.5, 1.5, 1.5, 0.5)), "#e9e9e9"]

    assert [name for name in groups if name.startswith("segment-")] == ["segment-0-1-0"]
    left, right = extent(groups["segment-0-1-0"])
    assert left == pytest.approx(extent(groups["token-0-1"])[0])
    assert right == pytest.approx(extent(groups["token-0-3"])[1])
    assert [name for name in groups if name.startswith("onset-")] == ["onset-0-1"]
    mark = groups["onset-0-1"].find(f".//{SVG}use")
    assert mark is not None
    first, last = extent(groups["token-0-1"])
    assert float(mark.get("x", "")) == pytest.approx((first + last) / 2)


def test_text_is_drawn_as_it_stands(record: Record, tmp_path: Path):
    """matplotlib writes each drawn string as a comment; a missing glyph would be a warning, an error here."""
    save_picture(
        [replace(record, tokens=["$a", " <b", "&", "日\ud800", "\x1b[31m", "$\\frac$"])], tmp_path / "p.svg"
    )
    text = (tmp_path / "p.svg").read_text()
    for token in ("$a", " &lt;b", "&amp;", "日\\ud800", "␛[31m", "$\\frac$", "Pay $5 &amp; &lt;b&gt;"):
        assert f"<!-- {token} -->" in text
    assert text.count("\N{MULTIPLICATION SIGN}1.5 -->") == 1
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))
    assert not re.search(r"url\((?!#)|@import|<image|<script|dc:date|[Mm]atplotlib", text)


@pytest.mark.parametrize("name", ["p.svg", "p.png"])
def test_the_same_records_give_the_same_bytes(record: Record, tmp_path: Path, name: str):
    three = [record, replace(record, advantage=-0.5, signals={}), record]
    save_picture(three, tmp_path / "new" / name)
    save_picture(three, tmp_path / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / "new" / name).read_bytes()


def test_a_long_completion_shows_the_lines_around_its_strongest_credit(record: Record, tmp_path: Path):
    num_lines, peak = 4 * MOST_LINES, 3 * MOST_LINES
    weight = [1.9 if t == peak else 1.0 for t in range(num_lines)]
    record = replace(
        record, tokens=["word\n"] * num_lines, mask=[1] * num_lines, segment=list(range(num_lines)),
        weight=weight, credit=weight, signals={},
    )  # fmt: skip
    groups = drawn(record, tmp_path / "p.svg")
    shown = [name for name in groups if name.startswith("token-")]
    assert f"token-0-{peak}" in shown and len(shown) == MOST_LINES
    assert f"{num_lines - MOST_LINES} of {num_lines} tokens not shown" in (tmp_path / "p.svg").read_text()


def test_a_segment_has_an_outline_on_each_line_and_one_onset(record: Record, tmp_path: Path):
    groups = drawn(replace(record, tokens=["a", "b", "c\n", "d", "e", "f"]), tmp_path / "p.svg")
    marks = sorted(name for name in groups if not name.startswith("token-"))
    assert marks == ["onset-0-1", "segment-0-1-0", "segment-0-1-3"]
