"""The task ``forms``: what it asks, what it pays, and whose tokens perfect credit pays."""

import json

import pytest
import torch

from benchmarks import forms


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


def test_a_line_that_is_left_out_makes_no_other_wrong():
    [row] = forms.rows("test", 1)
    _, *others = row["solution"].splitlines()
    assert forms.reward(["\n".join(others)], [row["solution"]]) == [1 - 1 / forms.FIELDS]
    twice = forms.fields("\n".join([*others, others[0]]), row["solution"])
    assert [right for _, _, right in twice] == [True] * len(others) + [False]


def test_only_values_of_the_right_fields_are_praised():
    logged = {}
    forms.reward(
        ["a: 1\nb: 3\nc: 3"],
        ["a: 1\nb: 2\nc: 3"],
        log_extra=lambda name, values: logged.update({name: values}),
    )
    assert logged == {"step_scores": [[[2, 4, 1.0], [7, 9, 0.0], [12, 14, 1.0]]]}
    assert json.dumps(logged)
    step_id, score = torch.tensor([[-1, 0, -1, 1, -1, 2]]), torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 1.0]])
    signals = forms.TokenSignals(mask=torch.ones(1, 6, dtype=torch.bool), step_id=step_id, step_score=score)
    praise, blame = (forms.FieldTruth()(torch.tensor([sign]), signals).advantage for sign in (1.0, -1.0))
    assert praise.tolist() == [[0.0, 3.0, 0.0, 0.0, 0.0, 3.0]]
    assert blame.tolist() == [[0.0, 0.0, 0.0, -6.0, 0.0, 0.0]]


def test_no_held_out_prompt_is_trained_on():
    prompts = [{row["prompt"] for row in forms.rows(part, 192)} for part in ("train", "test")]
    assert not prompts[0] & prompts[1]
