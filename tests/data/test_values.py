"""Values of files arrive as written, or the error names the line: no guess at numbers, dates or nothing."""

import json
from pathlib import Path

import pytest

from gear_rl.data.rows import load_rows
from gear_rl.errors import InputError


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
        ("a.csv", b"prompt,answer\na,1\nb\nc,3\n", "not as many values as columns"),
        ("a.csv", b'prompt,answer\na,1\n"b"x,2\nc,3\n', "expected after"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b","x":NaN}\n', "NaN is no JSON value"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b"\n', "Expecting ','"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b","x":1,"x":2}\n', "the key 'x' stands twice"),
        ("a.jsonl", b'{"prompt":"a"}\n\n%s\n' % (b"[" * 50_000), "recursion"),
        ("a.jsonl", b'{"prompt":"a"}\n\n[1]\n', "expected an object, found list"),
        ("a.json", b'[{"prompt":"a"},\n\n{"prompt"}]\n', "Expecting ':'"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(tmp_path, name, text, reason):
    file = written(tmp_path, name, text)
    with pytest.raises(InputError, match=rf"{name}, line 3: .*{reason}"):
        list(load_rows(file, chat=False))


def test_a_json_list_keeps_dates_and_numbers_beside_missing_ones(tmp_path):
    rows = [{"prompt": "a", "answer": "2026-01-02T10:00:00", "x": 2}, {"prompt": "b", "answer": "007"}]
    file = written(tmp_path, "a.json", "\r\n" * 3 + json.dumps(rows, indent=1))
    found = [*load_rows(file, chat=False)]
    assert found == [rows[0], rows[1] | {"x": None}] and repr(found[0]["x"]) == "2"


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [("2", '"2"', "int beside str"), ("3", "2.5", "float beside int"), ("1.5", "true", "bool beside float")],
)
def test_a_column_of_two_kinds_is_refused(tmp_path, one, other, kinds):
    file = written(tmp_path, "b.jsonl", f'{{"prompt": "a", "x": {one}}}\n{{"prompt": "b", "x": {other}}}')
    with pytest.raises(InputError, match=rf"b\.jsonl: column 'x': {kinds}; write all its values alike"):
        load_rows(file, chat=False)
