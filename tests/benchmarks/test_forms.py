"""The task ``forms``: what it asks, what it pays, and whose tokens perfect credit pays."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import forms
from benchmarks.gpu import forms as gpu_forms
from engines import tiny
from gear_rl.lab.scoring import score
from gear_rl.lab.spec import write_cell
from gear_rl.signals.steps import StepScore
from lab.test_verdict import cell
from support import batches


@pytest.mark.parametrize("family", forms.FAMILIES)
def test_no_item_of_the_warm_up_is_asked_again(family):
    seen = {part: set[str]() for part in forms.PARTS}
    for part in forms.PARTS:
        for row in forms.rows(part, 40):
            asked = (line.split(" ", 1) for line in row["prompt"].splitlines()[1:])
            seen[part] |= {key for name, key in asked if name == family}
    assert all(seen.values())
    assert not seen["warm"] & (seen["train"] | seen["test"])


def test_the_solution_earns_everything_and_a_quarter_false_three_quarters():
    [row] = forms.rows("test", 1)
    texts = [row["solution"], row["quarter_false"], row["sentences"]]
    assert forms.reward(texts, [row["solution"]] * 3) == [1.0, 0.75, 0.0]


def test_filler_between_fields_changes_neither_place_nor_pay():
    [row] = forms.rows("test", 1, filler=2)
    assert row["solution"].count("\nnext\nnext\n") == forms.FIELDS - 1
    assert forms.reward([row["solution"]], [row["solution"]]) == [1.0]


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("a: 1\nb: 2\nc: 3", [], 3),
        ("b: 2\nc: 3", ["b:"], 2),
        ("a: 1\nc: 3", ["\nc:"], 2),
        ("a: 1\nb: 2", ["2"], 2),  # the end: its token has no character of its own
        ("c: 3\nb: 2\na: 1", [], 3),
        ("c: 3\na: 1", ["c:"], 2),
        ("a: 1\nx: 2\nc: 3", ["\nx: 2"], 2),
        ("a: 1\nb: 2\nc: 3\na: 1", ["\na: 1"], 3),
        ("a:\nb: 2\nc: 3", ["\n"], 2),
        ("a: 1\nb: 2\nc:", ["", ":"], 2),
        ("a: 1\nb: 3\nc: 3", [" 3"], 2),
        ("a: 1\nword\nb: 2\nc: 3", [], 3),
        ("", [""], 0),
    ],
)
def test_every_field_that_is_lost_has_a_wrong_decision(text, wrong, right):
    found, count = forms.decisions(text, "a: 1\nb: 2\nc: 3")
    assert [text[begin:end] for begin, end, ok in found if not ok] == wrong
    assert count == right


def test_the_token_that_ends_a_completion_is_a_decision_of_its_own():
    tokenizer = tiny.tokenizer()
    found, _ = forms.decisions("a: 1", "a: 1\nb: 2")
    batch = batches.written(tokenizer, ["a: 1<|im_end|>"], logged={"step_scores": [found]})
    score = StepScore("spans").compute(batch, batches.PlainEngine(tokenizer, tiny.model(len(tokenizer))))
    assert score[0].tolist() == [1.0] * (score.shape[1] - 1) + [0.0]


def test_right_decisions_are_praised_and_wrong_ones_blamed():
    logged = {}
    forms.reward(
        ["a: 1\nb: 3\nc: 3"],
        ["a: 1\nb: 2\nc: 3"],
        log_extra=lambda name, values: logged.update({name: values}),
    )
    assert logged == {
        "step_scores": [
            [[0, 2, 1.0], [2, 4, 1.0], [4, 7, 1.0], [7, 9, 0.0], [9, 12, 1.0], [12, 14, 1.0], [13, 15, 1.0]]
        ]
    }
    assert json.dumps(logged)
    step_id, score = torch.tensor([[-1, 0, -1, 1, -1, 2]]), torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 1.0]])
    signals = forms.TokenSignals(mask=torch.ones(1, 6, dtype=torch.bool), step_id=step_id, step_score=score)
    praise, blame = (forms.FieldTruth()(torch.tensor([sign]), signals).advantage for sign in (1.0, -1.0))
    assert praise.tolist() == [[0.0, 3.0, 0.0, 0.0, 0.0, 3.0]]
    assert blame.tolist() == [[0.0, 0.0, 0.0, -6.0, 0.0, 0.0]]


def test_a_gate_counts_runs_of_its_own_sizes_and_needs_both(tiny_model, tmp_path):
    sizes = {"runs": tmp_path, "agent": False, "rollouts": 32, "dtype": "float32", "n": 8}
    (tmp_path / "merged").symlink_to(tiny_model)
    forms.write_rows(tmp_path)
    for steps, rate, end in ((24, 2e-4, 0.5), (24, 4e-4, 0.6), (8, 8e-4, 0.9)):
        for spec in gpu_forms.specs_of(SimpleNamespace(**sizes, steps=steps), (), range(3), [rate]):
            row = cell(spec.name, spec.seed, end, rate=rate)
            write_cell(spec, row, tmp_path / "cells")
    assert gpu_forms.best_rates(SimpleNamespace(**sizes, steps=24)) == [4e-4, 2e-4]
    text, lead = gpu_forms.gate_of([row])
    assert text.endswith("run the same command again") and lead is None


def test_no_held_out_prompt_is_trained_on():
    prompts = [{row["prompt"] for row in forms.rows(part, 192)} for part in ("train", "test")]
    assert not prompts[0] & prompts[1]


def test_faults_are_the_tokens_in_which_values_depart_from_the_right_ones(tiny_model, tmp_path, monkeypatch):
    forms.write_rows(tmp_path)
    (tmp_path / "merged").symlink_to(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def spoil(row):
        _, *others, last = row["solution"].splitlines()
        ids = tokenizer.encode("\n".join([*others, f"{last[:-1]}!!", "x: 1"]), add_special_tokens=False)
        return [*ids, tokenizer.eos_token_id]

    monkeypatch.setattr(gpu_forms, "sampled_ids", lambda model, tokenizer, rows: [*map(spoil, rows)])
    material = gpu_forms.own_mistakes(tmp_path, 2)
    pair, other = material.pairs
    [ids] = pair.case.faulty
    [fault] = pair.case.fault
    assert tokenizer.decode(ids[fault:]).startswith("!")
    assert pair.case.choices[fault] and sum(pair.case.choices) >= forms.FIELDS - 1
    assert not any(pair.case.choices[-3:])  # "x: 1" answers nothing
    rewards = material.rewards(material.blind, {})[:, 0].tolist()
    assert rewards == pytest.approx([1 - 2 / forms.FIELDS, 1.0] * 2)
    assert material.blind[0].row["solution"] == other.row["solution"] != pair.row["solution"]
    scored = score({"gear": {"name": "gear"}}, material)["methods"]
    assert scored["oracle"]["auc_choices"] == 1.0
    assert scored["gear"]["n"] == 2


def test_a_sampled_answer_ends_with_its_first_end(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ends = tokenizer.eos_token_id
    drawn = torch.tensor([[5, ends, ends], [5, 6, 7]])

    def generate(input_ids, **settings):
        return torch.cat([input_ids, drawn], dim=1)

    model = SimpleNamespace(device="cpu", eval=int, train=int, generate=generate)
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("a", "a b")]
    assert gpu_forms.sampled_ids(model, tokenizer, rows) == [[5, ends], [5, 6, 7]]
