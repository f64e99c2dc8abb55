"""Values arrive as they were written, or are refused with the line: no guess at numbers, dates or nothing."""

import json
from pathlib import Path

import pytest

from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError
from gear_rl.runs.config import load_config, parse_word

BASE = ["--model", "arena", "--dataset", "arena", "--reward", "arena"]


def written(folder: Path, name: str, text: str | bytes) -> str:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder / name)


def test_cells_of_a_csv_file_are_text(tmp_path):
    cells = ["007", "1.10", "NA", "nan", "null", "", "true", "2026-01-02", " 4 ", "-0", "é,;'", "a\nb"]
    quoted = [f'"{cell}"' if set(cell) & set(",\n") else cell for cell in [*cells, "a" * 200_000]]
    file = written(tmp_path, "train.csv", "prompt,answer\n" + "".join(f"q,{cell}\n" for cell in quoted))
    for name in (file, str(tmp_path)):
        assert [row["answer"] for row in load_rows(name, chat=False)] == [*cells, "a" * 200_000]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", b"prompt,answer\na,1\nb,2,3\nc,3\n", "not as many values as columns"),
        ("a.csv", b"prompt,answer\na,1\nb\nc,3\n", "not as many values as columns"),
        ("a.csv", b'prompt,answer\na,1\n"b"x,2\nc,3\n', "expected after"),
        ("a.csv", b"prompt,answer\na,1\nb,\xff\nc,3\n", "codec can't decode"),
        ("a.csv", b'prompt,"x\n\n",prompt\na,1,b\n', "two columns have the same name"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b","x":NaN}\n', "NaN is no JSON value"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b"\n', "Expecting ','"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b","x":1,"x":2}\n', "the key 'x' stands twice"),
        ("a.jsonl", b'{"prompt":"a"}\n\n%s\n' % (b"[" * 50_000), "recursion"),
        ("a.jsonl", b'{"prompt":"a"}\n\n\xff\n', "codec can't decode"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"\\ud83d"}\n', "surrogates not allowed"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b","x":1e999}\n', "1e999 is no JSON value"),
        ("a.jsonl", b'{"prompt":"a"}\n\n[1]\n', "expected an object, found list"),
        ("a.json", b'[{"prompt":"a"},\n\n{"prompt"}]\n', "Expecting ':'"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(tmp_path, name, text, reason):
    file = written(tmp_path, name, text)
    with pytest.raises(InputError, match=rf"{name}, line 3: .*{reason}"):
        list(load_rows(file, chat=False))


def test_a_json_list_keeps_dates_and_refuses_nan(tmp_path):
    rows = [{"prompt": "a", "answer": "2026-01-02T10:00:00"}, {"prompt": "b", "answer": "007"}]
    file = written(tmp_path, "a.json", "\r\n" * 3 + json.dumps(rows, indent=1))
    assert [dict(row) for row in load_rows(file, chat=False)] == rows
    broken = written(tmp_path, "b.json", '[{"prompt": "a"},\n {"prompt": "b", "answer": NaN}]')
    with pytest.raises(InputError, match=r"b\.json: NaN is no JSON value"):
        list(load_rows(broken, chat=False))


def test_a_missing_value_changes_no_other(tmp_path):
    rows = [{"prompt": "a", "x": 2}, {"prompt": "b"}, {"prompt": "c", "x": None}]
    file = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [repr(x) for x in load_rows(file, chat=False)["x"]] == ["2", "None", "None"]


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [("2", '"2"', "int beside str"), ("3", "2.5", "float beside int"), ("1.5", "true", "bool beside float")],
)
def test_a_column_of_two_kinds_is_refused(tmp_path, one, other, kinds):
    file = written(tmp_path, "b.jsonl", f'{{"prompt": "a", "x": {one}}}\n{{"prompt": "b", "x": {other}}}')
    with pytest.raises(InputError, match=rf"b\.jsonl: column 'x': {kinds}; write all its values alike"):
        load_rows(file, chat=False)


# --- configurations and the command line ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model: other", "run.yaml, line 4: the key 'model' stands twice"),
        ("credit: {name: gear, alpha: 1, alpha: 2}", "line 4: the key 'alpha' stands twice"),
        ("learning_rate: true", "learning_rate: True is not right: it is no number"),
        ("held_out: true", "held_out: True is not right"),
        ("max_steps: 1:30", "max_steps: '1:30' is not right"),
        ("learning_rate: .nan", "learning_rate: '.nan' is not right"),
        ("run_name: 1.10", "run_name: 1.1 is not right: .*; write it in quotes"),
    ],
)
def test_a_value_that_would_become_another_is_refused(tmp_path, line, message):
    file = written(tmp_path, "run.yaml", f"model: m\ndataset: d\nreward: r\n{line}\n")
    with pytest.raises(InputError, match=message):
        load_config(file)


@pytest.mark.parametrize("text", ["no", "Y", "0o10", "1_000", "=", "1e", "."])
def test_words_that_yaml_used_to_read_are_text(text):
    assert parse_word(f"[{text}]") == [text]
    assert parse_word(text) == text


@pytest.mark.parametrize("text", ["007", "1.10", "{prompt}", "[a]", "Q: {prompt}\nA: 1 # the answer"])
def test_a_text_setting_takes_the_word_as_it_stands(text):
    assert load_config(None, [*BASE, "--run_name", text]).trainer["run_name"] == text
