"""The viewer's page: every number of the records is in it, and nothing of them is markup."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.records import Record, RecordWriter
from gear_rl.view import html as module
from gear_rl.view.html import labels, laid_out, pack, save_html
from gear_rl.view.turns import by_turn

NASTY = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>&amp;<!--data-->"
NONE = float("nan")


def record(length: int = 3, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "step": 2,
        "group": 5,
        "method": "gear",
        "prompt": "1+1",
        "tokens": [f" t{n}" for n in range(length)],
        "ids": [70000 + n for n in range(length)],
        "mask": [1] * length,
        "turn": [0] * length,
        "segment": list(range(length)),
        "reward": 1.0,
        "advantage": 0.5,
        "credit": [0.25 * n for n in range(length)],
        "weight": [0.5 * n for n in range(length)],
        "signals": {"divergence": [0.1 * n for n in range(length)]},
    }
    return Record(**values | changes)


def agent() -> Record:
    """Two turns with a tool's answer of four tokens between: 0 1 | 2 3 4 5 | 6 7."""
    return record(
        8,
        prompt="<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n",
        tokens=["look", "<|im_end|>", "<tool_response>", "a\n", "b", "</tool_response>", "done\n", "."],
        mask=[1, 1, 0, 0, 0, 0, 1, 1],
        turn=[0, 0, -1, -1, -1, -1, 1, 1],
        segment=[0, 0, -1, -1, -1, -1, 1, 2],
        credit=[0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.25, 0.125],
        weight=[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.25],
    )


def write(path: Path, *records: Record) -> Path:
    RecordWriter(path).write(records)
    return path


def page_of(tmp_path: Path, *records: Record, **settings: Any) -> str:
    save_html([write(tmp_path / "r.jsonl", *records)], tmp_path / "page.html", **settings)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def block(page: str, name: str) -> bytes:
    [text] = re.findall(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return zlib.decompress(base64.b64decode(text, validate=True))


def index(page: str) -> dict[str, Any]:
    [text] = re.findall(r'<script type="application/json" id="index">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def decoded(data: bytes) -> dict[str, Any]:
    """The packed form read as its description says, number by number."""
    head = int.from_bytes(data[:4], "little")
    found = json.loads(data[4 : 4 + head])
    at, length = 4 + head, found["length"]
    for column in found["columns"]:
        width = 4 if column["kind"] == "i" else 2
        values = []
        for t in range(length):
            one = bytes(data[at + byte * length + t] for byte in range(width))
            if width == 4:
                values.append(int.from_bytes(one, "little", signed=True))
            else:
                values.append(float(np.frombuffer(one, dtype="<f2")[0]) * column["scale"])
        found[column["name"]] = values
        at += width * length
    assert at == len(data)
    return found


def near(packed: list[float], exact: list[float | None]) -> bool:
    """Three digits: half a unit in the eleventh bit of each number, or of what is 2**-14 of the largest."""
    known = [abs(x) for x in exact if x is not None and np.isfinite(x)]
    least = max(known, default=0.0) * 2**-14
    return all(
        np.isnan(p) if x is None or not np.isfinite(x) else abs(p - x) <= 2**-11 * max(abs(x), least)
        for p, x in zip(packed, exact, strict=True)
    )


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 2**31 - 1), numbers, numbers, numbers), max_size=7)
)
def test_every_number_comes_back_to_three_digits(rows):
    tokens, ids, credit, weight, signal = (list(column) for column in zip(*rows, strict=True)) if rows else (
        [], [], [], [], [],
    )  # fmt: skip
    given = record(len(rows), tokens=tokens, ids=ids, credit=credit, weight=weight, signals={"x": signal})
    found = decoded(zlib.decompress(pack(laid_out(given))))
    assert [found["ids"][w] for w in found["word"]] == ids
    assert found["mask"] == given.mask
    assert found["turn"] == given.turn
    assert found["segment"] == given.segment
    assert found["position"] == list(range(len(rows)))
    assert near(found["credit"], credit)
    assert near(found["weight"], weight)
    assert near(found["x"], signal)


def test_halves_by_hand():
    """0.75 is 0.5 of the largest: sign 0, exponent 14, fraction 0, 0x3800; the largest is 1.0, 0x3c00."""
    data = zlib.decompress(pack(laid_out(record(2, signals={"x": [0.75, -1.5]}))))
    assert data[-4:].hex() == "0000" + "38bc", "low bytes first, then high ones; the sign is the highest bit"


def test_text_is_shown_and_line_breaks_stay():
    tokens = ["a\tb\n", "\x1b[31m", "\u202e\ud800", ""]
    found = decoded(zlib.decompress(pack(laid_out(record(4, tokens=tokens, prompt="x\ny\x07")))))
    assert [found["words"][w] for w in found["word"]] == ["a⇥b\n", "␛[31m", "\\u202e\\ud800", ""]
    assert found["prompt"] == "x\ny␇"
    assert found["whole"] == ""
    told = record(4, tokens=tokens, teacher_prompt="x\nit is \x07")
    assert decoded(zlib.decompress(pack(laid_out(told))))["teacher"] == "x\nit is ␇"


def test_a_token_that_comes_again_is_stored_once():
    found = decoded(zlib.decompress(pack(laid_out(record(4, tokens=list("abab"), ids=[1, 2, 1, 3])))))
    assert found["words"] == ["a", "b", "b"], "the same text under another id is another token"
    assert found["word"] == [0, 1, 0, 2]


def test_turns_are_laid_out_and_the_tokens_of_the_policy_are_not_touched():
    found = decoded(zlib.decompress(pack(laid_out(agent()))))
    assert [found["words"][w] for w in found["word"]] == ["look", "<|im_end|>", "a\nb", "done\n", "."]
    assert found["position"] == [0, 1, 2, 6, 7]
    assert found["boxes"] == [[0, 2, 1]]
    assert found["credit"] == [0.5, 0.5, 0.0, 0.25, 0.125]
    assert found["prompt"] == "who?"
    assert found["whole"] == agent().prompt and found["teacher"] == ""
    assert found["turns"] is True


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=9))
def test_the_layout_is_by_turns(turn):
    """Tool output, turn -1 here, anywhere: the same tokens as ``by_turn`` keeps, each with its place."""
    mask = [int(t >= 0) for t in turn]
    given = record(len(turn), mask=mask, turn=turn, signals={})
    _, shown, position, _ = laid_out(given)
    assert shown.ids == by_turn(given).ids
    assert [given.ids[t] for t in position] == shown.ids
    assert [given.tokens[t] for t in position if mask[t]] == [
        text for text, trained in zip(shown.tokens, shown.mask, strict=True) if trained
    ]


def test_the_list_knows_every_record_and_which_completions_are_the_same(tmp_path):
    rows = [
        record(),
        record(method="rlsd", step=3, weight=[0.5, 2.0, 1.0]),
        record(prompt="2+2", reward=None, advantage=0.0),
        record(ids=[1, 2, 3], prompt=""),
    ]
    columns = index(page_of(tmp_path, *rows))["records"]
    assert columns["same"] == [0, 0, 1, 2]
    assert columns["method"] == [0, 1, 0, 0]
    assert columns["step"] == [2, 3, 2, 2]
    assert columns["reward"] == [1.0, 1.0, None, 1.0]
    assert columns["advantage"] == [0.5, 0.5, 0.0, 0.5]
    assert columns["spread"] == [1.0, 1.5, 1.0, 1.0]
    assert columns["segments"] == [3, 3, 3, 3]
    assert columns["hint"] == ["1+1", "1+1", "2+2", ""]


def test_prompt_and_ids_cannot_run_into_each_other(tmp_path):
    columns = index(page_of(tmp_path, record(1, ids=[12], tokens=["x"]), record(2, ids=[1, 2])))["records"]
    assert columns["same"] == [0, 1]


def test_the_same_method_of_two_files_is_told_apart(tmp_path):
    files = [write(tmp_path / name / "records.jsonl", record()) for name in ("a", "b")]
    assert save_html(files, tmp_path / "page.html") == 2
    found = index((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert found["methods"] == [
        {"name": "gear", "file": "a/records.jsonl"},
        {"name": "gear", "file": "b/records.jsonl"},
    ]
    assert found["records"]["same"] == [0, 0]


def test_labels_are_as_short_as_they_may_be():
    assert labels([Path("x/a/r.jsonl"), Path("y/a/r.jsonl")]) == ["x/a/r.jsonl", "y/a/r.jsonl"]
    assert labels([Path("x/a.jsonl"), Path("x/b.jsonl")]) == ["a.jsonl", "b.jsonl"]
    assert labels([Path("r.jsonl"), Path("r.jsonl")]) == ["r.jsonl", "r.jsonl"]


def test_onsets_are_counted_with_their_divergence(tmp_path):
    """Of 0.1, 0.4, 0.2, 0.3 nats the onset has 0.4: 1 of the largest. Alone in its completion nothing departs."""
    signals = {"divergence": [0.1, 0.4, 0.2, 0.3]}
    opens = record(4, segment=[0, 1, 1, 2], signals=signals)
    found = json.loads(
        block(
            page_of(tmp_path, opens, record(4, segment=[0] * 4), record(4, segment=[0, 0, 1, 2], signals={})),
            "opened",
        )
    )
    assert found["words"] == [" t1", " t0"]
    assert found["rows"] == [[0, 0.4, 1.0], [], [1, None, None]]


def test_the_onset_of_a_turn_after_a_tools_answer_is_its_own_token(tmp_path):
    late = agent()
    late.segment[6:] = [1, 1]
    late.signals["divergence"][:] = [0.0, 0.0, 9.0, 9.0, 9.0, 9.0, 0.5, 2.0]
    found = json.loads(block(page_of(tmp_path, late), "opened"))
    assert found["words"] == ["look", "done⏎"]
    assert found["rows"] == [[0, 0.0, 0.0, 1, 0.5, 0.25]]


def test_nothing_of_a_record_is_markup(tmp_path):
    rows = record(3, tokens=[NASTY] * 3, prompt=NASTY, method=NASTY, context=NASTY, fallback=NASTY,
                  tools={NASTY: 1}, signals={NASTY: [0.0] * 3})  # fmt: skip
    page = page_of(tmp_path, rows, title=NASTY)
    assert page.count("<img") == page.count("onerror='") == 0
    assert page.count("</script>") == 4, "index, script, one record, onsets"
    assert "<!--" not in page
    assert index(page)["methods"][0]["name"] == NASTY
    [title] = re.findall(r"<h1>(.*?)</h1>", page)
    assert unescape(title) == NASTY


def test_the_policy_lets_nothing_in_but_this_script_and_style(tmp_path):
    page = page_of(tmp_path, record())
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = {rule.split()[0]: rule.split()[1:] for rule in unescape(policy).split("; ")}
    assert rules.pop("default-src") == ["'none'"]
    assert rules.pop("img-src") == ["data:"]
    for name in ("style", "script"):
        [text] = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{name}-src") == [f"'sha256-{digest}'"]
    assert rules == {"base-uri": ["'none'"], "form-action": ["'none'"]}


def test_the_page_names_no_other_place(tmp_path):
    page = page_of(tmp_path, record())
    assert set(re.findall(r"https?:[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}, (
        "a name, not an address"
    )
    assert not re.search(r"\burl\(|@import|<link(?![^>]*data:)|\ssrc=", page)


def test_the_script_never_reads_text_as_markup_or_code():
    for path in (Path(module.__file__).parent / "viewer").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bfetch\b"
        assert not re.search(forbidden, text), path.name
        assert "</script" not in text.lower()
        assert len(text.splitlines()) <= 450


def test_the_same_records_give_the_same_bytes(tmp_path):
    first = page_of(tmp_path, record(), agent())
    assert page_of(tmp_path, record(), agent()) == first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"r\.jsonl: no records in it; has the run logged a step"),
        ("\n\n", r"r\.jsonl: no records in it"),
        ("{", r"r\.jsonl, line 1: not JSON"),
        ('{"step": 1}', r"r\.jsonl, line 1: not a credit record, it lacks advantage"),
    ],
)
def test_a_broken_file_is_named_and_leaves_nothing(tmp_path, content, message):
    (tmp_path / "r.jsonl").write_text(content, encoding="utf-8")
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(ValueError, match=message):
        save_html([tmp_path / "r.jsonl"], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "r.jsonl"]


def test_null_is_how_a_record_file_writes_what_was_not_finite(tmp_path):
    """In a process of its own: here the tests' type checker would object before the page does."""
    null = {"advantage": None, "credit": [None] * 3, "weight": [None, 1.0, 3.0], "signals": {"x": [None] * 3}}
    line = json.dumps(json.loads(record(3).to_json()) | null)
    (tmp_path / "null.jsonl").write_text(line, encoding="utf-8")
    code = "import sys; from gear_rl.view.html import save_html; save_html(sys.argv[1:2], sys.argv[2])"
    files = [str(tmp_path / name) for name in ("null.jsonl", "page.html")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = decoded(block(page, "r0"))
    assert np.isnan([*found["credit"], found["weight"][0], *found["x"]]).all()
    assert index(page)["records"]["spread"] == [2.0]
    assert index(page)["records"]["advantage"] == [None]


def test_a_second_file_without_records_is_named(tmp_path):
    good, empty = write(tmp_path / "a.jsonl", record()), tmp_path / "b.jsonl"
    empty.touch()
    with pytest.raises(ValueError, match=r"b\.jsonl: no records"):
        save_html([good, empty], tmp_path / "page.html")


def test_half_surrogates_reach_the_page_as_text(tmp_path):
    (tmp_path / "r.jsonl").write_text(
        record(1, tokens=["x"], prompt="?").to_json().replace('"x"', '"\\ud83d"').replace('"?"', '"\\udc00"')
    )
    save_html([tmp_path / "r.jsonl"], tmp_path / "page.html")
    found = decoded(block((tmp_path / "page.html").read_text(encoding="utf-8"), "r0"))
    assert (found["words"], found["prompt"]) == (["\\ud83d"], "\\udc00")
