"""The record file: bounded, never half written, and clear about what is wrong with it."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_rl.records import FORMAT, Record, RecordWriter, read_records


def record(step: int = 0, length: int = 3, **changes) -> Record:
    values = {
        "step": step,
        "group": 0,
        "method": "gear",
        "prompt": "1+1",
        "tokens": ["é\n"] * length,
        "ids": [7] * length,
        "mask": [1] * length,
        "turn": [0] * length,
        "segment": [0] * length,
        "reward": 1.0,
        "advantage": 0.5,
        "credit": [0.5] * length,
        "weight": [1.0] * length,
        "signals": {"divergence": [0.25] * length},
    }
    return Record(**values | changes)


def test_what_is_written_is_read(tmp_path):
    written = [record(0), record(1, length=0), record(2, reward=None, fallback="no_context", signals={})]
    RecordWriter(tmp_path / "new" / "r.jsonl").write(written)
    assert list(read_records(tmp_path / "new" / "r.jsonl")) == written


@given(st.text())
def test_any_text_survives_in_one_line(text):
    line = record(prompt=text, tokens=[text] * 3).to_json()
    assert "\n" not in line
    assert json.loads(line)["prompt"] == text


def test_numbers_are_short_and_finite():
    line = json.loads(record(credit=[1 / 3, float("nan"), float("-inf")]).to_json())
    assert line["credit"] == [0.333333, None, None]


@pytest.mark.parametrize("room", [1, 2, 5])
def test_beyond_its_bound_the_oldest_go(tmp_path, room):
    size = len(record(0).to_json().encode()) + 1
    writer = RecordWriter(tmp_path / "r.jsonl", max_bytes=room * size)
    for step in range(7):
        writer.write([record(step)])
        assert (tmp_path / "r.jsonl").stat().st_size <= room * size
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == list(range(7 - room, 7))


def test_the_newest_is_kept_though_it_is_too_large(tmp_path):
    RecordWriter(tmp_path / "r.jsonl", max_bytes=1).write([record(0), record(1)])
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == [1]
    with pytest.raises(ValueError, match="max_bytes: 0 is too small"):
        RecordWriter(tmp_path / "r.jsonl", max_bytes=0)


def test_a_full_disk_ends_the_recording_with_one_warning_and_leaves_the_old_file_whole(
    tmp_path, monkeypatch, caplog
):
    writer = RecordWriter(tmp_path / "r.jsonl")
    writer.write([record(0)])

    def dies(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", dies)
    writer.write([record(1)])
    monkeypatch.undo()
    writer.write([record(2)])
    [message] = caplog.messages
    assert message == f"record_file: {writer.path}: disk full; nothing more is recorded, the training goes on"
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == [0]
    assert os.listdir(tmp_path) == ["r.jsonl"], "no temporary file is left behind"


def test_a_resumed_run_drops_what_it_makes_again(tmp_path):
    RecordWriter(tmp_path / "r.jsonl").write(record(step) for step in range(5))
    RecordWriter(tmp_path / "r.jsonl", resume_step=3).write([record(3, method="again")])
    found = list(read_records(tmp_path / "r.jsonl"))
    assert [(r.step, r.method) for r in found] == [(0, "gear"), (1, "gear"), (2, "gear"), (3, "again")]
    RecordWriter(tmp_path / "r.jsonl").write([record(9)])
    assert [r.step for r in read_records(tmp_path / "r.jsonl")] == [9]


def test_a_resumed_run_says_that_the_file_is_missing(tmp_path, caplog):
    file = tmp_path / "r.jsonl"
    RecordWriter(file, resume_step=3).write([record(3)])
    assert [r.step for r in read_records(file)] == [3]
    assert caplog.messages == [f"record_file: {file} is missing; records begin at step 3"]


def test_a_damaged_line_in_the_middle_ends_the_recording_and_nothing_is_replaced(tmp_path, caplog):
    file = tmp_path / "r.jsonl"
    RecordWriter(file).write([record(0), record(1)])
    damaged = b"{" + file.read_bytes()
    file.write_bytes(damaged)
    RecordWriter(file, resume_step=2).write([record(2)])
    assert file.read_bytes() == damaged
    [message] = caplog.messages
    assert "line 1: not JSON" in message and "nothing more is recorded" in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"r\.jsonl, line 2: not JSON"),
        ("[1]", r"r\.jsonl, line 2: not a credit record, it lacks advantage, credit"),
        ('{"step": 1}', r"r\.jsonl, line 2: not a credit record, it lacks"),
        ('{"step": NaN}', r"r\.jsonl, line 2: not JSON \(NaN is"),
        ('{"step": 1, "step": 2}', r"r\.jsonl, line 2: not JSON \(the key 'step' stands twice"),
        (
            json.dumps(dataclasses.asdict(record(format=FORMAT + 1))),
            rf"line 2: format {FORMAT + 1}, but this version",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "r.jsonl").write_text(f"{record().to_json()}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        list(read_records(tmp_path / "r.jsonl"))


def test_blank_lines_and_later_fields_are_passed_over(tmp_path):
    later = json.loads(record().to_json()) | {"invented_later": 1}
    (tmp_path / "r.jsonl").write_text(f"\n{json.dumps(later)}\n\n")
    assert list(read_records(tmp_path / "r.jsonl")) == [record()]


def test_a_whole_number_is_a_reward(tmp_path):
    (tmp_path / "r.jsonl").write_text(json.dumps(json.loads(record().to_json()) | {"reward": 1}))
    assert [r.reward for r in read_records(tmp_path / "r.jsonl")] == [1]


@pytest.mark.parametrize("changed", [{"tokens": ["a"]}, {"turn": []}, {"signals": {"d": [1.0]}}])
def test_lists_of_another_length_are_named(tmp_path, changed):
    (tmp_path / "r.jsonl").write_text(json.dumps(json.loads(record().to_json()) | changed))
    with pytest.raises(ValueError, match=r"r\.jsonl, line 1: .* has \d entries for \d tokens"):
        list(read_records(tmp_path / "r.jsonl"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "1"),
        ("tokens", "ab"),
        ("signals", []),
        ("truncated", None),
        ("advantage", "x"),
        ("tokens", [1] * 3),
        ("ids", [None] * 3),
        ("credit", ["x"] * 3),
        ("signals", {"d": 3}),
        ("step", 10**400),
        ("reward", 10**400),
        ("tools", {"calls": "1"}),
    ],
)
def test_a_field_of_another_kind_is_named(tmp_path, name, value):
    row = json.loads(record().to_json()) | {name: value}
    (tmp_path / "r.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=f"not a credit record, {name} is {type(value).__name__}"):
        list(read_records(tmp_path / "r.jsonl"))
