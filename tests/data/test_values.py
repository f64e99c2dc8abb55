"""Values arrive as they were written, or are refused with the line: no guess at numbers, dates or nothing."""

import json
import logging
from pathlib import Path

import pytest

from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError
from gear_rl.runs.config import load_config
from gear_rl.runs.plain_yaml import parse_word, parse_yaml
from gear_rl.strict_json import parse_items, parse_json

BASE = ["--model", "arena", "--dataset", "arena", "--reward", "arena"]
CELLS = [
    "007",
    "1.10",
    "1e5",
    "NA",
    "nan",
    "null",
    "",
    "true",
    "2026-01-02",
    " 4 ",
    "1_000",
    "-0",
    "é,;'",
    "a\nb",
]


def written(folder: Path, name: str, text: str | bytes) -> str:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder / name)


@pytest.mark.parametrize("stream", [False, True])
def test_cells_of_a_csv_file_are_text(tmp_path, stream):
    quoted = [f'"{cell}"' if set(cell) & set(",\n") else cell for cell in CELLS]
    file = written(tmp_path, "a.csv", "prompt,answer\n" + "".join(f"q,{cell}\n" for cell in quoted))
    assert [row["answer"] for row in load_rows(file, chat=False, stream=stream)] == CELLS


def test_a_csv_column_is_a_number_where_the_configuration_says_so(tmp_path):
    file = written(tmp_path, "a.csv", "prompt,level,share,hard,id\na,03,.5,True,03\nb,,,,\nc,x,1,no,1\n")
    types = {"level": "int", "share": "float", "hard": "bool"}
    rows = [dict(row) for row in load_rows(file, chat=False, csv_types=types)]
    assert rows == [
        {"prompt": "a", "level": 3, "share": 0.5, "hard": True, "id": "03"},
        {"prompt": "b", "level": None, "share": None, "hard": None, "id": ""},
    ]
    assert load_config(None, [*BASE, "--csv_types.level", "int"]).csv_types == {"level": "int"}
    for types, message in (
        ({"levle": "int"}, "csv_types.levle: .* has no such column; did you mean level"),
        ({"level": "date"}, "csv_types.level: 'date' is not one of int, float, bool"),
    ):
        with pytest.raises(InputError, match=message):
            load_rows(file, chat=False, csv_types=types)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", b"prompt,answer\na,1\nb,2,3\nc,3\n", "3 values for 2 columns"),
        ("a.csv", b"prompt,answer\na,1\nb\nc,3\n", "1 values for 2 columns"),
        ("a.csv", b'prompt,answer\na,1\n"b"x,2\nc,3\n', "not CSV"),
        ("a.csv", b"prompt,answer\na,1\nb,\xff\nc,3\n", "not UTF-8 text"),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":"b","x":NaN}\n{"prompt":"c"}', "NaN is no JSON value"),
        ("a.jsonl", b'{"prompt":"a"}\n\x1f\n{"prompt":"c"}', "not JSON"),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":"b","x":-Infinity}\n{"prompt":"c"}', "-Infinity is no JSON"),
        (
            "a.jsonl",
            b'{"prompt":"a"}\n{"prompt":"b","x":1,"x":2}\n{"prompt":"c"}',
            "the key 'x' stands twice",
        ),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":"b","x":1e999}\n{"prompt":"c"}', "1e999 is beyond what"),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":"b","x":1e-999}\n{"prompt":"c"}', "1e-999 is beyond what"),
        ("a.jsonl", b'{"prompt":"a"}\n{"x":9223372036854775808}\n{"prompt":"c"}', "is beyond 64 bits"),
        ("a.jsonl", b'{"prompt":"a"}\n{"x":%s}\n{"prompt":"c"}' % (b"9" * 5000), "is beyond 64 bits"),
        ("a.jsonl", b'{"prompt":"a"}\n%s\n{"prompt":"c"}' % (b"[" * 50_000), "nested too deeply"),
        (
            "a.jsonl",
            b'{"prompt":"a"}\n{"m":{"x":["\\ud800"]}}\n{"prompt":"c"}',
            "m.x.0 holds half a surrogate",
        ),
    ],
)
def test_a_bad_row_names_its_line_and_the_others_stay(tmp_path, caplog, name, text, reason):
    file, aside = written(tmp_path, name, text), tmp_path / "quarantine.jsonl"
    with caplog.at_level(logging.WARNING):
        assert load_rows(file, chat=False, quarantine=aside)["prompt"] == ["a", "c"]
    number = 2 if name.endswith("jsonl") else 3
    assert file in caplog.text and f"the first at line {number})" in caplog.text
    [entry] = map(json.loads, aside.read_text().splitlines())
    assert entry["line"] == number and reason in entry["reason"]
    caplog.clear()
    stream = load_rows(file, chat=False, stream=True)
    assert [row["prompt"] for row in [*stream, *stream]] == ["a", "c"] * 2
    assert caplog.text.count(f"line {number}: ") == 1, "once, though it was read again and again"


def test_a_bad_prompt_names_its_line_too(tmp_path, caplog):
    file = written(tmp_path, "a.jsonl", '\n\n{"prompt": "a"}\n\n{"prompt": 7}\n')
    with caplog.at_level(logging.WARNING):
        load_rows(file, chat=False)
    assert "the first at line 5)" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_list_keeps_dates_and_refuses_what_json_does_not_have(tmp_path, stream):
    rows = [{"prompt": "a", "answer": "2026-01-02T10:00:00"}, {"prompt": "b", "answer": "007"}]
    file = written(tmp_path, "a.json", json.dumps(rows, indent=1))
    assert [dict(row) for row in load_rows(file, chat=False, stream=stream)] == rows
    broken = written(tmp_path, "b.json", '[{"prompt": "a"},\n {"prompt": "b", "answer": NaN}]')
    with pytest.raises(InputError, match=r"b\.json, line 2: NaN is no JSON value"):
        list(load_rows(broken, chat=False, stream=stream))


def test_a_folder_of_text_files_is_read_like_a_file(tmp_path):
    written(tmp_path, "train.csv", "prompt,answer\na,007\n")
    written(tmp_path, "test.csv", "prompt,answer\nb,\n")
    assert load_rows(str(tmp_path), chat=False)["answer"] == ["007"]
    assert load_rows(str(tmp_path), split="test", chat=False)["answer"] == [""]


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (3, 2.5, "'x' holds values of different kinds: a whole number in line 1, a fraction in line 3"),
        ({"y": [1]}, {"y": [2.5]}, r"'x.y\[\]' holds values of different kinds"),
        (3, "3", "a whole number in line 1, text in line 3"),
        (True, 1, "true or false in line 1, a whole number in line 3"),
        ({"y": 1}, [1], "an object in line 1, a list in line 3"),
    ],
)
def test_a_column_of_two_kinds_is_refused_instead_of_changed(tmp_path, one, other, message):
    rows = [{"prompt": "a", "x": one}, {"prompt": "b", "x": other}]
    file = written(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=message):
        load_rows(file, chat=False)
    assert [row["x"] for row in load_rows(file, chat=False, stream=True)] == [one, other]


@pytest.mark.parametrize("text", ["[1,]", "[1", "[1]x", "[1 2]", "", "[,]", "[}"])
def test_a_list_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="line 1: not JSON"):
        list(parse_items(text))
    with pytest.raises(ValueError, match="not JSON"):
        parse_json(text)


# --- configurations and the command line ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model: other", "line 4: the key 'model' stands twice"),
        ("credit: {name: gear, alpha: 1, alpha: 2}", "line 4: the key 'alpha' stands twice"),
        ("learning_rate: true", "learning_rate: True is not right: true or false is no number"),
        ("held_out: true", "held_out: True is not right"),
        ("reward_weights: [true, 1]", "reward_weights.0: True is not right"),
        ("max_steps: 1:30", "max_steps: '1:30' is not right"),
        ("max_steps: 010", "max_steps: '010' is not right: a number does not begin with 0"),
        ("learning_rate: .nan", "learning_rate: nan is not right: NaN is no number"),
        (f"temperature: '{'9' * 400}'", "temperature: .* is not right: it is beyond what a number holds"),
        ("temperature: 1e999", "line 4: 1e999 is beyond what a number holds"),
        (f"seed: {'9' * 5000}", r"line 4: 9+\.\.\. is too large for a whole number"),
        (f"lora: {'[' * 20_000}", "run.yaml: nested too deeply"),
        ("lora: &x [*x]", "nested too deeply"),
        ("run_name: 1.10", "run_name: 1.1 is not right: .*; write it in quotes"),
        ('run_name: "\\ud800"', "run_name holds half a surrogate pair"),
    ],
)
def test_a_value_that_would_become_another_is_refused(tmp_path, line, message):
    file = written(tmp_path, "run.yaml", f"model: m\ndataset: d\nreward: r\n{line}\n")
    with pytest.raises(InputError, match=message):
        load_config(file)


@pytest.mark.parametrize(
    "text", ["no", "on", "Y", "1:30", "010", "0o10", "1_000", "2026-01-02", "=", "1e", ".", "0b1"]
)
def test_words_that_yaml_used_to_read_are_text(text):
    assert parse_yaml(f"x: {text}") == {"x": text}
    assert parse_word(text) == text
    assert load_config(None, [*BASE, "--run_name", text]).trainer["run_name"] == text


@pytest.mark.parametrize("text", ["007", "1.10", "{prompt}", "[a]", "12"])
def test_a_text_setting_takes_the_word_as_it_stands(text):
    assert load_config(None, [*BASE, "--run_name", text]).trainer["run_name"] == text


def test_a_template_with_a_colon_is_no_mapping():
    template = "Q: {prompt}\nA: {privileged_context} # the answer"
    found = load_config(None, [*BASE, "--teacher_prompt_template", template])
    assert found.trainer["teacher_prompt_template"] == template
    with pytest.raises(InputError, match="--columns: line 1: the key 'a' stands twice"):
        load_config(None, [*BASE, "--columns", "{a: b, a: c}"])
