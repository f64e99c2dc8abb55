"""The page of the viewer: it has every number of the records, and nothing in a record is markup."""

import base64
import hashlib
import json
import re
import zlib
from html import unescape
from pathlib import Path
from typing import Any

from gear_rl.records import Record, RecordWriter
from gear_rl.view import html as module
from gear_rl.view.html import save_html
from support.records import record

NASTY = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>&amp;<!--data-->"
NAN = float("nan")


def agent(**changes: Any) -> Record:
    """Two turns with a tool's answer of four tokens between: 0 1 | 2 3 4 5 | 6 7."""
    values: dict[str, Any] = {
        "prompt": "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n",
        "tokens": ["look", "<|im_end|>", "<tool_response>", "a\n", "b", "</tool_response>", "done\n", "."],
        "mask": [1, 1, 0, 0, 0, 0, 1, 1], "turn": [0, 0, -1, -1, -1, -1, 1, 1],
        "segment": [0, 0, -1, -1, -1, -1, 1, 2], "credit": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.25, 0.125],
        "weight": [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.25],
    }  # fmt: skip
    return record(8, **values | changes)


def write(path: Path, *records: Record) -> Path:
    RecordWriter(path).write(records)
    return path


def page_of(tmp_path: Path, *records: Record, **settings: Any) -> str:
    save_html([write(tmp_path / "r.jsonl", *records)], tmp_path / "page.html", **settings)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def block(page: str, name: str) -> dict[str, Any]:
    [text] = re.findall(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))


def index(page: str) -> dict[str, Any]:
    [text] = re.findall(r'<script type="application/json" id="index">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_every_number_comes_back_to_three_digits_and_nan_as_null(tmp_path):
    given = record(4, tokens=list("abab"), ids=[1, 2, 1, 3], credit=[1 / 3, NAN, -2e-9, 0.0],
                   weight=[2 / 3, 1e7, float("inf"), 1.0], signals={"x": [NAN, 1.23456, -5.0, 0.0]})  # fmt: skip
    page = page_of(tmp_path, given)
    found = block(page, "r0")
    assert found["words"] == ["a", "b", "b"], "the same text under another id is another token"
    assert (found["word"], found["ids"]) == ([0, 1, 0, 2], [1, 2, 3])
    assert found["credit"] == [0.333, None, -2e-9, 0.0]
    assert found["weight"] == [0.667, 1e7, None, 1.0]
    assert found["signals"] == {"x": [None, 1.23, -5.0, 0.0]}
    assert found["position"] == found["segment"] == [0, 1, 2, 3]
    assert (found["unit"], found["full"]) == (0.5, 2.0)
    assert page_of(tmp_path, given) == page, "the same records give the same bytes"


def test_turns_are_laid_out_and_the_tokens_of_the_policy_stay_as_they_are(tmp_path):
    found = block(page_of(tmp_path, agent()), "r0")
    assert [found["words"][w] for w in found["word"]] == ["look", "<|im_end|>", "a\nb", "done\n", "."]
    assert found["position"] == [0, 1, 2, 6, 7] and found["boxes"] == [[0, 2, 1]]
    assert found["credit"] == [0.5, 0.5, 0.0, 0.25, 0.125]
    assert (found["prompt"], found["whole"], found["turns"]) == ("who?", agent().prompt, True)


def test_the_list_knows_every_record_and_which_completions_are_the_same(tmp_path):
    rows = [
        record(),
        record(method="rlsd", step=3, weight=[0.5, 2.0, 1.0]),
        record(prompt="2+2", reward=None, advantage=NAN, weight=[NAN, 1.0, 3.0], mask=[1, 0, 1]),
        record(ids=[1, 2, 3], segment=[0, 0, 0]),
    ]
    files = [write(tmp_path / name / "records.jsonl", *rows) for name in ("a", "b")]
    assert save_html(files, tmp_path / "page.html") == 8
    found = index((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [(method["name"], method["file"]) for method in found["methods"]] == [
        ("gear", "a/records.jsonl"), ("rlsd", "a/records.jsonl"), ("gear", "b/records.jsonl"),
        ("rlsd", "b/records.jsonl"),
    ]  # fmt: skip
    assert found["records"]["method"] == [0, 1, 0, 0, 2, 3, 2, 2]
    assert found["records"]["same"] == [0, 0, 1, 2] * 2


def test_onsets_are_counted_with_their_divergence(tmp_path):
    """Of 0.1, 0.4, 0.2, 0.3 nats the onset has 0.4: 1 of the largest. One segment for all has no onset."""
    late = agent(segment=[0, 0, -1, -1, -1, -1, 1, 1])
    late.signals["divergence"][:] = [0.0, 0.0, 9.0, 9.0, 9.0, 9.0, 0.5, 2.0]
    rows = [
        record(4, segment=[0, 1, 1, 2], signals={"divergence": [0.1, 0.4, 0.2, 0.3]}),
        record(4, segment=[0] * 4),
        record(4, segment=[0, 0, 1, 2], signals={}),
        late,
    ]
    found = block(page_of(tmp_path, *rows), "opened")
    assert found["words"] == [" t1", " t0", "look", "done⏎"]
    assert found["rows"] == [[0, 0.4, 1.0], [], [1, None, None], [2, 0.0, 0.0, 3, 0.5, 0.25]]


def test_the_solution_of_the_group_stands_beside_with_its_first_difference(tmp_path):
    right = [record(3, ids=[1, 2, 3], tokens=["7", " 8", "!"], advantage=0.5, weight=[1.0] * 3)] * 2
    wrong = record(3, ids=[1, 9, 3], tokens=["7", " 9", "!"], reward=0.0, advantage=-1.0,
                   credit=[-0.5, -2.0, -0.5], weight=[0.5, 2.0, 0.5])  # fmt: skip
    page = page_of(tmp_path, *right, wrong)
    found = block(page, "r2")
    assert (found["mistake"], found["solution"]) == (1, ["7", " 8", "!"])
    assert block(page, "r0")["mistake"] is None
    assert index(page)["first"] == 2
    assert index(page)["note"].endswith("The page opens on one of these.")
    assert block(page, "texts")["rows"][2] == "1+1\n7 9!", "prompt and completion"


def test_the_title_names_method_and_model(tmp_path):
    (tmp_path / "gear.yaml").write_text("dataset: rows.jsonl\nmodel: Qwen/Qwen3-0.6B\n")
    [title] = re.findall(r"<h1>(.*?)</h1>", page_of(tmp_path, record()))
    assert title == "gear · Qwen/Qwen3-0.6B · r.jsonl"
    assert "where the mistake is, is not known" in index(page_of(tmp_path, record()))["note"]


def test_nothing_of_a_record_is_markup(tmp_path):
    rows = record(3, tokens=[NASTY] * 3, prompt=NASTY, method=NASTY, context=NASTY, fallback=NASTY,
                  tools={NASTY: 1}, signals={NASTY: [0.0] * 3})  # fmt: skip
    page = page_of(tmp_path, rows, title=NASTY)
    assert page.count("<img") == page.count("onerror='") == page.count("<!--") == 0
    assert page.count("</script>") == 5, "index, script, one record, onsets, texts"
    assert index(page)["methods"][0]["name"] == NASTY
    [title] = re.findall(r"<h1>(.*?)</h1>", page)
    assert unescape(title) == f"{NASTY} · {NASTY}"


def test_the_policy_allows_this_script_and_style_alone(tmp_path):
    page = page_of(tmp_path, record())
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = {rule.split()[0]: rule.split()[1:] for rule in unescape(policy).split("; ")}
    for name in ("style", "script"):
        [text] = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{name}-src") == [f"'sha256-{digest}'"]
    none = ["'none'"]
    assert rules == {"default-src": none, "base-uri": none, "form-action": none, "img-src": ["data:"]}
    assert set(re.findall(r"https?:[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\burl\(|@import|<link(?![^>]*data:)|\ssrc=", page)


def test_the_script_never_reads_text_as_markup_or_code():
    for path in (Path(module.__file__).parent / "viewer").glob("*.js"):
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bfetch\b"
        assert not re.search(forbidden, path.read_text(encoding="utf-8")), path.name
