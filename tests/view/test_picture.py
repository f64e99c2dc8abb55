"""The picture: boxes where the tokens are, in the colour of their credit, in a file that is always the same."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from gear_rl.records import Record
from gear_rl.view.picture import save_picture
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


def test_a_segment_has_an_outline_on_each_line_and_one_onset(record: Record, tmp_path: Path):
    groups = drawn(replace(record, tokens=["a", "b", "c\n", "d", "e", "f"]), tmp_path / "p.svg")
    marks = sorted(name for name in groups if not name.startswith("token-"))
    assert marks == ["onset-0-1", "segment-0-1-0", "segment-0-1-3"]
