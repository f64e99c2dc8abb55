"""The picture: boxes where the tokens are, in the colour of their credit, in a file that is always the same."""

import re
import struct
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from gear_rl.records import Record
from gear_rl.view.picture import COLUMNS, MOST_LINES, lines_of, save_picture
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


def test_every_token_is_a_box_of_its_colour(record: Record, tmp_path: Path):
    groups = drawn(record, tmp_path / "p.svg")
    boxes = {name: group for name, group in groups.items() if name.startswith("token-")}
    assert sorted(boxes) == [f"token-0-{t}" for t in range(6)]
    assert [colour(boxes[f"token-0-{t}"]) for t in range(5)] == [
        shade(strength, 2.0) for strength in (0.5, 1.5, 1.5, 1.5, 0.5)
    ]


def test_tool_output_is_grey_whatever_its_credit(record: Record, tmp_path: Path):
    groups = drawn(replace(record, credit=[3.0] * 6), tmp_path / "p.svg")
    red, green, blue = (colour(groups["token-0-5"])[n : n + 2] for n in (1, 3, 5))
    assert red == green == blue != "ff"


def test_the_outline_runs_around_the_segment_and_the_onset_stands_on_its_first_token(
    record: Record, tmp_path: Path
):
    groups = drawn(record, tmp_path / "p.svg")
    assert [name for name in groups if name.startswith("segment-")] == ["segment-0-1-0"]
    left, right = extent(groups["segment-0-1-0"])
    assert left == pytest.approx(extent(groups["token-0-1"])[0])
    assert right == pytest.approx(extent(groups["token-0-3"])[1])
    assert [name for name in groups if name.startswith("onset-")] == ["onset-0-1"]
    mark = groups["onset-0-1"].find(f".//{SVG}use")
    assert mark is not None
    first, last = extent(groups["token-0-1"])
    assert float(mark.get("x", "")) == pytest.approx((first + last) / 2)


def test_a_segment_over_two_lines_is_outlined_on_both_and_has_one_onset(record: Record, tmp_path: Path):
    groups = drawn(replace(record, tokens=["a", "b", "c\n", "d", "e", "f"]), tmp_path / "p.svg")
    assert [name for name in groups if name.startswith("segment-")] == ["segment-0-1-0", "segment-0-1-3"]
    assert [name for name in groups if name.startswith("onset-")] == ["onset-0-1"]


def test_one_segment_for_all_has_no_onset(record: Record, tmp_path: Path):
    groups = drawn(replace(record, segment=[0] * 5 + [-1]), tmp_path / "p.svg")
    assert [name for name in groups if name.startswith(("segment-", "onset-"))] == ["segment-0-0-0"]


def test_text_is_drawn_as_it_stands(record: Record, tmp_path: Path):
    """matplotlib writes each drawn string as a comment; read as mathematics, ``\\frac`` would be an error."""
    record = replace(
        record, tokens=["$a", " <b", "&", "_c$", "\\d", "$\\frac$"], prompt="Pay $5 & <b> $\\frac$"
    )
    save_picture([record], tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    for token in ("$a", " &lt;b", "&amp;", "_c$", "\\d", "$\\frac$", "Pay $5 &amp; &lt;b&gt; $\\frac$"):
        assert f"<!-- {token} -->" in text
    assert text.count("\N{MULTIPLICATION SIGN}1.5 -->") == 1


def test_three_records_share_a_picture_and_four_or_none_do_not(record: Record, tmp_path: Path):
    groups = drawn([record, replace(record, advantage=-0.5, signals={}), record], tmp_path / "p.svg")
    assert sum(name.startswith("token-") for name in groups) == 18
    for records in ([], [record] * 4):
        with pytest.raises(ValueError, match=rf"1 to 3 records, not {len(records)}"):
            save_picture(records, tmp_path / "q.svg")
    assert not (tmp_path / "q.svg").exists()


@pytest.mark.parametrize("name", ["p.svg", "p.png"])
def test_the_same_records_give_the_same_bytes(record: Record, tmp_path: Path, name: str):
    save_picture([record], tmp_path / "new" / name)
    save_picture([record], tmp_path / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / "new" / name).read_bytes()


def test_the_svg_loads_nothing_and_bears_no_date(record: Record, tmp_path: Path):
    save_picture([record], tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))
    assert not re.search(r"url\((?!#)|@import|<image|<script|dc:date|[Mm]atplotlib", text)


def test_the_png_is_wide_enough_to_read(record: Record, tmp_path: Path):
    save_picture([record], tmp_path / "p.png")
    content = (tmp_path / "p.png").read_bytes()
    assert content[:4] == b"\x89PNG"
    width, height = struct.unpack(">II", content[16:24])
    assert 1000 <= width <= 1400 and 100 < height < width


def test_characters_without_a_glyph_or_that_steer_are_drawn(record: Record, tmp_path: Path):
    """A missing glyph would be a warning, which the test suite makes an error."""
    save_picture(
        [replace(record, tokens=["日本", "\x1b[31m", "\u202e", "", "\ud800", "🙂"])], tmp_path / "p.svg"
    )


def test_lines_hold_every_token_once_and_are_not_too_long(record: Record):
    tokens = [" word"] * 30 + ["\n"] + ["x" * 200] + ["y"] * 7
    lines = lines_of(replace(record, tokens=tokens))
    assert [token.t for line in lines for token in line] == list(range(len(tokens)))
    assert all(line[-1].column + len(line[-1].text) <= COLUMNS for line in lines)
    assert [line[0].t for line in lines] == [0, 18, 31, 32]


def test_a_long_completion_shows_the_lines_around_its_strongest_credit(record: Record, tmp_path: Path):
    num_lines, peak = 4 * MOST_LINES, 3 * MOST_LINES
    weight = [1.0] * num_lines
    weight[peak] = 1.9
    record = replace(
        record, tokens=["word\n"] * num_lines, mask=[1] * num_lines, segment=list(range(num_lines)),
        weight=weight, credit=weight, signals={},
    )  # fmt: skip
    groups = drawn(record, tmp_path / "p.svg")
    shown = [name for name in groups if name.startswith("token-")]
    assert f"token-0-{peak}" in shown and len(shown) == MOST_LINES
    assert f"{num_lines - MOST_LINES} of {num_lines} tokens not shown" in (tmp_path / "p.svg").read_text()


def test_a_record_without_tokens_is_drawn(record: Record, tmp_path: Path):
    none = replace(record, tokens=[], mask=[], segment=[], credit=[], weight=[], signals={})
    assert not [name for name in drawn(none, tmp_path / "p.svg") if name.startswith("token-")]


def test_another_suffix_is_an_error(record: Record, tmp_path: Path):
    with pytest.raises(ValueError, match=r"only \.svg and \.png"):
        save_picture([record], tmp_path / "p.pdf")
