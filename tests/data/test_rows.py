"""Splits, columns and bad rows of files, folders, generators and (as local folders) hub datasets."""

import json
import re
from pathlib import Path

import datasets
import numpy as np
import pytest

from benchmarks import sums
from gear_rl.data.rows import load_rows, load_splits, prompt_fault
from gear_rl.errors import InputError


def jsonl(path: Path, rows) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def text(row) -> str:
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


ROWS = [{"prompt": f"question {i}", "answer": str(i)} for i in range(40)]


def test_only_the_hubs_splits_have_parts(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    for name in ("benchmarks.sums:rows", jsonl(tmp_path / "a.jsonl", ROWS), str(tmp_path / "saved")):
        with pytest.raises(InputError, match=r"has no split 'train\[:5\]'; only the hub's"):
            load_rows(name, split="train[:5]", chat=True)


def test_a_function_gives_the_rows_of_both_parts():
    train, test = load_splits("benchmarks.sums:rows", chat=False, held_out=3)
    assert [*test] == sums.rows("test", 3) and train[0] == sums.rows("train", 1)[0]
    assert len(train) == 4096


def generated(part, count):
    yield {"prompt": part, "meta": {"id": 1}}
    yield {"prompt": "b", "meta": {"id": 2, "x": "y"}}


def with_arrays(part, count):
    return [{"prompt": "a"}, {"prompt": "b", "answer": np.int64(3), "cells": np.zeros(2)}]


def mistaken(part, count):
    return [{"prompt": "a"}["promt"]]


def test_a_function_may_yield_rows_whose_values_stay_and_its_mistakes_are_named():
    assert [row["meta"] for row in load_rows("data.test_rows:generated", chat=False)] == [
        {"id": 1},
        {"id": 2, "x": "y"},
    ]
    assert load_rows("data.test_rows:with_arrays", chat=False)[1]["cells"] == [0.0, 0.0]
    for name, message in (
        ("data.test_rows:mistaken", "^dataset: data.test_rows:mistaken fails: .*promt"),
        ("data.test_rows:text", "^dataset: data.test_rows:text fails: "),
        ("data.test_rows:generatd", "^dataset: 'data.test_rows' has no 'generatd'"),
    ):
        with pytest.raises(InputError, match=message):
            load_rows(name, chat=False)


@pytest.fixture
def hub_like(tmp_path):
    """A folder as the hub has it: a card with two configurations, and parquet files."""
    folder = tmp_path / "gsm-tiny"
    folder.mkdir()
    rows = [{"question": f"{i} + 1", "meta": {"gold": str(i + 1), "by": ["a", "b"]}} for i in range(20)]
    parts = {"train": rows[:16], "test": [*rows[16:], rows[3]], "other": rows[:2]}
    for name, part in parts.items():
        datasets.Dataset.from_list(part).to_parquet(folder / f"{name}.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: main\n  data_files:\n"
        "  - {split: train, path: train*}\n  - {split: test, path: test*}\n"
        "- config_name: other\n  data_files: [{split: train, path: other*}]\n---\n# Tiny\n"
    )
    return str(folder)


COLUMNS = {"prompt": "question", "answer": "meta.gold", "writer": "meta.by.-1"}


def test_a_hub_dataset_by_configuration_and_split(hub_like):
    found = load_rows(hub_like, config="main", columns=COLUMNS, chat=True)
    rows = list(found)
    assert len(rows) == 16
    assert rows[2]["prompt"] == [{"role": "user", "content": "2 + 1"}]
    assert (rows[2]["answer"], rows[2]["writer"], rows[2]["meta"]["gold"]) == ("3", "b", "3")


def test_the_datasets_own_test_split_is_held_out(hub_like, caplog):
    train, test = load_splits(hub_like, config="main", columns=COLUMNS, chat=True, held_out=0.5)
    assert [text(row) for row in test] == ["16 + 1", "17 + 1", "18 + 1", "19 + 1", "3 + 1"]
    assert [text(row) for row in train] == [f"{i} + 1" for i in range(16) if i != 3]
    assert "row 4" in caplog.text and caplog.text.count("left out") == 1
    _, two = load_splits(hub_like, config="main", columns=COLUMNS, chat=True, held_out=2)
    assert [text(row) for row in two] == ["16 + 1", "17 + 1"]
    assert load_splits(hub_like, config="main", columns=COLUMNS, chat=True)[1] is None
    # A configuration without a test split is divided.
    train, test = load_splits(hub_like, config="other", columns=COLUMNS, chat=True, held_out=1)
    assert (len(train), len(test)) == (1, 1)


@pytest.mark.parametrize("held_out", [7, 0.2])
def test_held_out_rows_do_not_depend_on_the_others(tmp_path, held_out):
    train, test = load_splits(jsonl(tmp_path / "a.jsonl", ROWS), chat=True, held_out=held_out)
    kept, aside = {text(row) for row in train}, {text(row) for row in test}
    assert kept | aside == {row["prompt"] for row in ROWS}
    assert not kept & aside
    if isinstance(held_out, int):
        assert len(test) == held_out
    # Reversed, and every prompt twice, once with other white space.
    more = [{"prompt": f"\n {row['prompt'].replace(' ', '  ')}"} for row in ROWS]
    again = jsonl(tmp_path / "b.jsonl", [*ROWS[::-1], *more])
    # The duplicate of the last prompt exceeds the count.
    count = 2 * held_out - 1 if isinstance(held_out, int) else held_out
    train, test = load_splits(again, chat=False, held_out=count)
    assert {" ".join(text(row).split()) for row in test} == aside
    assert len(test) == 2 * len(aside)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (0, "held_out: 0 is neither a count of rows nor a share"),
        (40, "held_out: 40 of .* leaves 0 rows to train on and 40 held out"),
        (1e-9, "leaves 40 rows to train on and 0 held out"),
    ],
)
def test_a_wrong_held_out_is_named(tmp_path, held_out, message):
    with pytest.raises(InputError, match=message):
        load_splits(jsonl(tmp_path / "a.jsonl", ROWS), chat=True, held_out=held_out)


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ([], "prompt is empty"),
        ([{"role": "user", "content": {"text": "hi"}}], "prompt holds a message whose content is dict"),
        ([{"role": "user", "content": [{"type": "image"}]}], None),
        ([{"role": "system", "content": "Add."}, {"role": "user", "content": " "}], "prompt is empty"),
        ([{"role": "user", "content": [{"type": "text", "text": "\n"}]}], "prompt is empty"),
        ([{"role": "user", "content": [{"type": "text", "text": " "}, {"type": "image"}]}], None),
        ([{"role": "user", "content": "hi"}, {"role": "tool", "content": ""}], None),
        ([{"role": "assistant", "content": None}, {"role": "user", "content": "hi"}], None),
        ([{"from": "human", "value": "hi"}], "prompt is in ShareGPT's form; write role and content"),
        ('[{"role": "user", "content": "hi"}]', "prompt is messages as JSON text; store the list itself"),
        ("[1, 2]: which is larger?", None),
        (
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "4"}],
            "prompt ends with the assist",
        ),
    ],
)
def test_what_a_prompt_is(prompt, fault):
    found = prompt_fault(prompt)
    assert found == fault or (fault and found.startswith(fault))


def test_an_image_block_needs_an_image(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "which?"}]}]}
    ]
    with pytest.raises(
        InputError, match="prompt has an image block without an image; give the column images"
    ):
        load_rows(jsonl(tmp_path / "a.jsonl", rows), chat=True)
    assert len(load_rows(jsonl(tmp_path / "b.jsonl", [rows[0] | {"images": ["a.png"]}]), chat=True)) == 1


def test_messages_that_end_in_the_answer_are_parted_as_the_error_says(tmp_path):
    turns = [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}]
    file = jsonl(tmp_path / "a.jsonl", [{"messages": turns}])
    with pytest.raises(InputError, match="prompt ends with the assistant's answer") as caught:
        load_rows(file, columns={"prompt": "messages"}, chat=True)
    columns = dict(re.findall(r"--columns\.(\w+) (\S+)", str(caught.value)))
    [row] = load_rows(file, columns=columns, chat=True)
    assert row["prompt"] == turns[:1] and row["solution"] == "4"


def test_a_path_leads_into_json_text_or_is_refused(tmp_path):
    rows = [{"prompt": f"q{i}", "reward_model": json.dumps({"ground_truth": i})} for i in range(3)]
    file = jsonl(tmp_path / "a.jsonl", rows)
    found = load_rows(file, columns={"answer": "reward_model.ground_truth"}, chat=True)
    assert found["answer"][:] == [0, 1, 2]
    with pytest.raises(
        InputError, match=r"columns.answer: no row of .* has 'reward_model.truth'; .*ground_truth"
    ):
        load_rows(file, columns={"answer": "reward_model.truth"}, chat=True)


@pytest.mark.parametrize("name", ["prompts", "completions"])
def test_a_column_named_as_an_argument_of_rewards_is_refused(tmp_path, name):
    file = jsonl(tmp_path / "a.jsonl", [{"prompt": "a", name: "b"}])
    with pytest.raises(InputError, match=f"has a column '{name}'.*--columns.NAME {name}"):
        load_rows(file, chat=True)
    assert load_rows(file, columns={"other": name}, chat=True)["other"][:] == ["b"]


def test_rows_of_one_prompt_cannot_be_held_out(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", [{"prompt": "open it", "code": i} for i in range(9)])
    for held_out in (2, 0.5):
        with pytest.raises(
            InputError, match=r"all 9 rows of .* have one prompt; give an eval_dataset instead"
        ):
            load_splits(file, chat=True, held_out=held_out)


def test_bad_rows_are_left_out_with_one_warning(tmp_path, caplog):
    rows = [ROWS[0], {"prompt": None}, {"answer": "1"}, {"prompt": " \n"}, {"prompt": ""}, ROWS[1]]
    found = load_rows(jsonl(tmp_path / "a.jsonl", rows), chat=True)
    assert [text(row) for row in found] == ["question 0", "question 1"]
    [record] = caplog.records
    assert "row 2" in record.message and "prompt is missing" in record.message
    assert "4 of 6 rows" in record.message and "2 prompt is empty" in record.message


def test_two_columns_may_change_places(tmp_path):
    name = jsonl(tmp_path / "a.jsonl", [{"prompt": "2 + 2", "solution": "... 100.", "answer": "4"}])
    with pytest.raises(InputError, match=r"rename that one too, as --columns.old_solution solution"):
        load_rows(name, columns={"solution": "answer"}, chat=True)
    [row] = load_rows(name, columns={"solution": "answer", "old_solution": "solution"}, chat=True)
    assert (row["solution"], row["old_solution"]) == ("4", "... 100.")
    own = jsonl(tmp_path / "b.jsonl", [{"prompt": "2 + 2", "solution": "... 100.", "meta": {"gold": "4"}}])
    [row] = load_rows(own, columns={"solution": "meta.gold", "old_solution": "solution"}, chat=True)
    assert (row["solution"], row["old_solution"]) == ("4", "... 100.")
