"""The record file: bounded, never half written, and with an error that names what is wrong."""

import json
import math
import os

import pytest

from gear_rl.records import FORMAT, RecordWriter, read_records
from support.records import record


def test_a_written_record_is_read_back(tmp_path):
    written = [record(tokens=["é\n"] * 3), record(0), record(reward=None, fallback="no_context", signals={})]
    written += [record(prompt='\r\n\u2028"\\')]  # one line whatever the text
    written += [record(prompt="\ud83d")]  # a surrogate alone, which UTF-8 has no bytes for
    RecordWriter(tmp_path / "new" / "r.jsonl").write(written)
    assert list(read_records(tmp_path / "new" / "r.jsonl")) == written


def test_numbers_are_short_and_nan_is_null_in_the_file(tmp_path):
    written = record(
        credit=[1 / 3, math.nan, -math.inf], advantage=math.nan, signals={"x": [math.nan, 1e9, 0]}
    )
    line = json.loads(written.to_json())
    assert line["credit"] == [0.333333, None, None] and line["advantage"] is None
    RecordWriter(tmp_path / "r.jsonl").write([written])
    [found] = read_records(tmp_path / "r.jsonl")
    assert found.credit[0] == 0.333333 and all(map(math.isnan, [*found.credit[1:], found.advantage]))
    assert math.isnan(found.signals["x"][0]) and found.signals["x"][1:] == [1e9, 0]


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_the_oldest_records_go_first(tmp_path, kept):
    size = len(record(step=0).to_json().encode()) + 1
    writer = RecordWriter(tmp_path / "r.jsonl", max_bytes=kept * size)
    for step in range(7):
        writer.write([record(step=step)])
        assert (tmp_path / "r.jsonl").stat().st_size <= kept * size
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == list(range(7 - kept, 7))


def test_the_newest_is_kept_though_it_is_too_large(tmp_path):
    RecordWriter(tmp_path / "r.jsonl", max_bytes=1).write([record(step=0), record(step=1)])
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == [1]


def test_a_full_disk_ends_the_recording_with_one_warning_and_leaves_the_old_file(
    tmp_path, monkeypatch, caplog
):
    writer = RecordWriter(tmp_path / "r.jsonl")
    writer.write([record(step=0)])

    def dies(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", dies)
    writer.write([record(step=1)])
    monkeypatch.undo()
    writer.write([record(step=2)])
    [message] = caplog.messages
    assert message == f"record_file: {writer.path}: disk full; nothing more is recorded, the training goes on"
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == [0]
    assert os.listdir(tmp_path) == ["r.jsonl"], "no temporary file is left behind"


def test_a_resumed_run_drops_the_records_that_it_makes_again(tmp_path, caplog):
    file = tmp_path / "r.jsonl"
    RecordWriter(file).write(record(step=step) for step in range(1, 6))
    RecordWriter(file, resume_step=3).write([record(step=4, method="again")])
    found = [(r.step, r.method) for r in read_records(file)]
    assert found == [(1, "gear"), (2, "gear"), (3, "gear"), (4, "again")]
    RecordWriter(file).write([record(step=9)])
    assert [r.step for r in read_records(file)] == [9]
    file.unlink()
    RecordWriter(file, resume_step=3).write([record(step=4)])
    assert [r.step for r in read_records(file)] == [4]
    assert caplog.messages == [f"record_file: {file} is missing; records begin at step 4"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a credit record, it lacks advantage, credit"),
        (json.dumps({"format": FORMAT + 1, "renamed": []}), rf"format {FORMAT + 1}, but this version"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "r.jsonl").write_text(f"{record().to_json()}\n{line}\n")
    with pytest.raises(ValueError, match=rf"r\.jsonl, line 2: {message}"):
        list(read_records(tmp_path / "r.jsonl"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": ["a"]}, "ids has 3 entries for 1 tokens"),
        ({"signals": {"d": [1.0]}}, "d has 1 entries for 3 tokens"),
        ({"tokens": None}, "tokens is None and no list"),
        ({"tokens": [1, 2, 3]}, "tokens.0: Input should be a valid string"),
        ({"credit": "abc"}, "credit is 'abc' and no list"),
        ({"credit": ["a", 1, 2]}, "credit.0: Input should be a valid number"),
        ({"mask": [1, None, 1]}, "mask.1: Input should be a finite number"),
        ({"signals": None}, "signals is None and no list"),
        ({"signals": {"d": None}}, "d is None and no list"),
        ({"reward": "x"}, "reward: Input should be a valid number"),
        ({"prompt": None}, "prompt: Input should be a valid string"),
        ({"method": None}, "method: Input should be a valid string"),
        ({"format": "1.0x"}, "format: Input should be a valid integer"),
    ],
)
def test_a_field_of_another_length_or_type_is_named(tmp_path, changed, message):
    (tmp_path / "r.jsonl").write_text(json.dumps(json.loads(record().to_json()) | changed))
    with pytest.raises(ValueError, match=rf"r\.jsonl, line 1: not a credit record, {message}"):
        list(read_records(tmp_path / "r.jsonl"))
