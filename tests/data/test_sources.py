"""Values of files arrive as written, or the error names the line: no guess at numbers, dates or nothing."""

import gzip
import json
from pathlib import Path

import datasets
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
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"b"\n', "Expecting ','"),
        ("a.jsonl", b'{"prompt":"a"}\n\n%s\n' % (b"[" * 50_000), "recursion"),
        ("a.jsonl", b'{"prompt":"a"}\n\n{"prompt":"\\ud83d"}\n', "surrogates not allowed"),
        ("a.jsonl", b'{"prompt":"a"}\n\n[1]\n', "expected an object, found list"),
        ("a.json", b'[{"prompt":"a"},\n\n{"prompt"}]\n', "Expecting ':'"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(tmp_path, name, text, reason):
    file = written(tmp_path, name, text)
    with pytest.raises(InputError, match=rf"{name}, line 3: .*{reason}"):
        list(load_rows(file, chat=False))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "prompt;answer\na;1\n", "has no column 'prompt', only prompt;answer; name yours"),
        ("a.jsonl.gz", "prompt", "a.jsonl.gz: Not a gzipped file"),
        (
            "a.csv",
            "prompt,answer,answer\na,1,2\n",
            "a.csv, line 1: two columns are called 'answer'; rename one",
        ),
        (
            "a.json",
            json.dumps({"data": [{"prompt": "a"}]}, indent=1),
            "a.json: an object over several lines; write",
        ),
    ],
)
def test_a_file_of_another_format_is_named(tmp_path, name, text, reason):
    with pytest.raises(InputError, match=reason):
        load_rows(written(tmp_path, name, text), chat=False)


def test_a_file_has_no_other_split(tmp_path):
    file = written(tmp_path, "a.jsonl", '{"prompt": "a"}')
    with pytest.raises(InputError, match=r"a\.jsonl has no split 'test': a file has only 'train'; leave"):
        load_rows(file, split="test", chat=False)


def test_a_json_list_keeps_dates_and_numbers_beside_missing_ones(tmp_path):
    rows = [{"prompt": "a", "answer": "2026-01-02T10:00:00", "x": 2}, {"prompt": "b", "answer": "007"}]
    file = written(tmp_path, "a.json", "\r\n" * 3 + json.dumps(rows, indent=1))
    found = [*load_rows(file, chat=False)]
    assert found == [rows[0], rows[1] | {"x": None}] and repr(found[0]["x"]) == "2"


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ("2", '"2"', "int beside str"),
        ("[]", "2.5", "float beside list"),
        ("1.5", "true", "bool beside float"),
    ],
)
def test_a_column_of_two_kinds_is_refused(tmp_path, one, other, kinds):
    file = written(tmp_path, "b.jsonl", f'{{"prompt": "a", "x": {one}}}\n{{"prompt": "b", "x": {other}}}')
    with pytest.raises(InputError, match=rf"b\.jsonl: column 'x': {kinds}; write all its values alike"):
        load_rows(file, chat=False)


@pytest.mark.parametrize(
    "values",
    [
        [3, 2.5, None, 1e-07, 12345678901234567890],
        [{"x": 1}, {"y": "z"}, None, {"x": None}],
        [[{"name": "f", "arguments": {"x": 2}}], [{"name": "g", "arguments": {"y": 2.5}}], []],
        [{"at": [48.856697, 1 / 3]}, {"at": [2, "north"]}],
        [[{"role": "user", "content": "a"}], [{"role": "user", "content": [{"type": "text", "text": "b"}]}]],
        ["007", "1e3"],
    ],
)
def test_values_that_a_table_would_change_stay(tmp_path, values):
    rows = [{"prompt": f"q{i}", "deep": {"own": value}, "x": value} for i, value in enumerate(values)]
    file = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, [*rows, {"prompt": ""}])))
    found = load_rows(file, columns={"again": "deep.own"}, chat=True)  # wrapped, copied, one row left out
    for column in ("x", "again"):
        assert repr(found[column][:]) == repr(values) == repr([row[column] for row in found])


def test_a_prompts_calls_keep_their_own_arguments(tmp_path):
    def prompt(**arguments):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "content": "ok"},
        ]

    prompts = [prompt(x=1), prompt(y="z"), [{"role": "user", "content": "b"}]]
    rows = [{"prompt": each} for each in prompts]
    file = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert load_rows(file, chat=True)["prompt"][:] == prompts
    # A table, which has filled in the others' arguments.
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    found = load_rows(str(tmp_path / "a.parquet"), chat=True)["prompt"][:]
    assert [each[1]["tool_calls"] for each in found[:2]] == [each[1]["tool_calls"] for each in prompts[:2]]


@pytest.mark.parametrize(
    "name", ["a.tsv", "a.JSONL", "a.CSV", "a.jsonl.GZ", "a.jsonl.gz", "a.csv.gz", "folder/a.jsonl.gz"]
)
def test_other_files_are_read_alike(tmp_path, name):
    rows = [{"prompt": "a, b", "answer": "007"}, {"prompt": "c", "answer": "1.50"}]
    text = "\n".join(map(json.dumps, rows))
    if "jsonl" not in name.lower():
        mark = "\t" if "tsv" in name else ","
        text = "\n".join(
            mark.join(f'"{cell}"' for cell in row) for row in [rows[0], *(r.values() for r in rows)]
        )
    (tmp_path / "folder").mkdir()
    file = written(tmp_path, name, gzip.compress(text.encode()) if name.lower().endswith("gz") else text)
    assert [*load_rows(str(Path(file).parent) if "/" in name else file, chat=False)] == rows
