"""The picture: tokens on the colour of their credit, bars for the signals, in a file that is always the same."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from gear_rl.records import Record
from gear_rl.view.picture import save_picture
from gear_rl.view.terminal import shade

SVG, WIDTH = "{http://www.w3.org/2000/svg}", 12.2


@pytest.fixture
def record() -> Record:
    """Six tokens; tokens 1 to 3 are a segment, the last is tool output."""
    weight = [0.5, 1.5, 1.5, 1.5, 0.5, 0.0]
    return Record(
        step=2, group=0, method="gear", prompt="Pay $5 & <b>", tokens=["$a", " <b", "&", "_c$", "\\d", "ok"],
        ids=[0, 1, 2, 3, 4, 5], mask=[1, 1, 1, 1, 1, 0], turn=[0, 0, 0, 0, 0, -1],
        segment=[0, 1, 1, 1, 2, -1], reward=1.0, advantage=0.5, credit=[0.5 * w for w in weight],
        weight=weight, signals={"divergence": [0.5, 2.0, 0.1, 0.0, 1.0, 7.0]},
    )  # fmt: skip


def drawn(record: Record, path: Path) -> list[tuple[str, dict[int, str]]]:
    """Each line's characters, and the colour behind each place that has one."""
    save_picture([record], path)
    tree, lines = ElementTree.fromstring(path.read_text()), dict[int, list[str]]()
    colours = dict[int, dict[int, str]]()
    for text in tree.iter(f"{SVG}text"):
        line, first = (
            int((float(text.get("y", "")) - 20) / 24.4 + 0.1),
            round(float(text.get("x", "")) / WIDTH),
        )
        written = lines.setdefault(line, [" "] * 100)
        written[first : first + len(text.text or "")] = (text.text or "").replace("\N{NO-BREAK SPACE}", " ")
    for box in tree.iter(f"{SVG}rect"):
        if box.get("shape-rendering"):
            line, first = round(float(box.get("y", "")) / 24.4), round(float(box.get("x", "")) / WIDTH)
            places = range(first, first + round(float(box.get("width", "")) / WIDTH))
            colours.setdefault(line, {}).update(dict.fromkeys(places, box.get("fill", "")))
    return [("".join(text).rstrip(), colours.get(line, {})) for line, text in sorted(lines.items())]


def test_tokens_are_on_their_colour_and_a_bar_has_the_height_of_the_signal(record, tmp_path):
    lines = drawn(record, tmp_path / "p.svg")
    at = next(n for n, (line, _) in enumerate(lines) if "⟦" in line)
    (bars, _), (text, colours) = lines[at - 1 : at + 1]
    assert text.strip("│ ") == "$a⟨0.5⟩⟦ <b&_c$⟧⟨1.5⟩\\d⟨0.5⟩«ok»"
    shown = {
        token: {colours.get(text.index(token) + n) for n in range(len(token))} for token in record.tokens
    }
    weights = zip(record.tokens[:5], record.weight, strict=False)
    assert shown == {token: {shade(weight, 2.0)} for token, weight in weights} | {"ok": {None}}
    over = [bars.ljust(100)[text.index(token) :][: len(token)] for token in record.tokens]
    assert over == ["▂▂", "███", " ", "   ", "▄▄", "  "]
    assert bars.count("█") == 3, "none over brackets, nor for the tool's 7 nats"
    assert any("KL(student ‖ teacher), up to 2 nats" in line for line, _ in lines)


def test_a_signal_that_was_not_recorded_has_no_line(record, tmp_path):
    bare = replace(record, signals={})
    assert not {"▂", "█", "K"} & set("".join(line for line, _ in drawn(bare, tmp_path / "p.svg")))


def test_the_file_is_the_same_every_time_and_needs_no_network(record, tmp_path):
    for name in ("a.svg", "b.svg"):
        save_picture([record, record], tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and "url(http" not in text
