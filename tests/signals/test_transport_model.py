"""Distances of a model's hidden states, against each completion by itself, without padding, batch or hook."""

import math
import sys

import pytest
import torch
from torch import nn

from engines import tiny
from gear_rl.signals.batch import Completions, TeacherPrompt, left_padded
from gear_rl.signals.transport import TransportDistance, transport_distances

pytest.importorskip("ot", reason="POT is an extra: pip install 'gear-rl[shear]'")
from signals.transport_loop import by_loop

PAD = 0
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7], [13], [5, 6, 7], [13]]
COMPLETIONS = [
    [30, 31, 32, 33, 34],
    [40, 41],
    [30, 31, 52, 53, 54, 55, 56],
    [60, 61, 62, 40],
    [70],
    [80, 81, 82],
    [90, 91],
    [83, 84],
]
MASKS = [
    [1, 1, 0, 1, 1],
    [1, 1],
    [0, 1, 1, 0, 0, 1, 1],
    [1, 1, 1, 0],
    [1],
    [1, 1, 1],
    [0, 0],
    [1, 1],
]
GROUP = [7, 3, 7, 3, 7, 5, 7, 5]
"""Three groups, interleaved; a completion of the first has no trained token; the last has one outcome."""
OUTCOME = [True, False, False, True, False, True, True, True]
SETTINGS = {"window_tokens": 3, "stride_tokens": 2, "regularisation": 0.1, "iterations": 500}


def right_padded(rows, width):
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def batch(width=9, prompt_width=0):
    completions = Completions(
        ids=right_padded(COMPLETIONS, width),
        attention=right_padded([[1] * len(row) for row in COMPLETIONS], width),
        mask=right_padded(MASKS, width).bool(),
    )
    prompts = [TeacherPrompt(tuple(ids)) for ids in PROMPTS]
    student = left_padded([*prompts, TeacherPrompt(tuple(range(1, prompt_width + 1)))], PAD)
    return {
        "completions": completions,
        "student": type(student)(ids_BP=student.ids_BP[:-1], attention_BP=student.attention_BP[:-1]),
        "group_B": torch.tensor(GROUP),
        "right_B": torch.tensor(OUTCOME),
    }


@pytest.fixture
def model() -> nn.Module:
    net = tiny.model(97, hidden_size=40, attention_dropout=0.5)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12.0)
    return net.eval()


@torch.no_grad()
def by_hand(model, width=9):
    """Each completion by itself, without padding or hook; the states of its trained tokens, through the loop."""
    states = {}
    for b, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        out = model(input_ids=torch.tensor([prompt + completion]), output_hidden_states=True)
        own = out.hidden_states[-1][0, len(prompt) :]
        if any(MASKS[b]):
            states[b] = own[torch.tensor(MASKS[b]).bool()]
    found = torch.zeros(len(PROMPTS), width)
    for group in set(GROUP):
        rows = [b for b in states if GROUP[b] == group]
        values = by_loop([states[b] for b in rows], [OUTCOME[b] for b in rows], 3, 2, 0.1)
        for b, value in zip(rows, values, strict=True):
            places = [t for t, m in enumerate(MASKS[b]) if m]
            found[b, places] = value.float()
    return found


def counted(model, **given):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        return transport_distances(model, **given), len(calls)
    finally:
        handle.remove()


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_agrees_with_one_completion_and_one_pair_at_a_time(model, batch_size):
    given, expected = batch(), by_hand(model)
    assert expected[0].max() > 0.1 and expected[0, 0] != expected[0, 4], (
        "the oracle must have something to see"
    )
    found, forwards = counted(model, **given, **SETTINGS, batch_size=batch_size)
    torch.testing.assert_close(found, expected, atol=5e-4, rtol=0)
    assert found.dtype == torch.float32 and not found.requires_grad
    mask = given["completions"].mask
    assert (found[~mask] == 0).all()
    # Three completions with a trained token in group 7, two in group 3; group 5 has one outcome: no forward.
    assert forwards == {1: 5, 2: 3, 8: 2}[batch_size]
    assert (found[[5, 6, 7]] == 0).all()


def test_the_head_is_asked_for_one_position_only(model):
    shapes = []
    model.register_forward_hook(lambda module, args, output: shapes.append(tuple(output.logits.shape)))
    transport_distances(model, **batch(), **SETTINGS)
    assert shapes == [(3, 1, 97), (2, 1, 97)]


def test_padding_changes_nothing(model):
    found = transport_distances(model, **batch(), **SETTINGS)
    wider = transport_distances(model, **batch(width=14, prompt_width=11), **SETTINGS)
    torch.testing.assert_close(wider[:, :9], found, atol=1e-4, rtol=0)
    assert (wider[:, 9:] == 0).all()


@pytest.mark.parametrize("max_mb", [1e-6, 64.0])
def test_rows_that_are_not_wanted_hold_zero_and_are_still_compared_with(model, max_mb):
    every = transport_distances(model, **batch(), **SETTINGS)
    rows = torch.tensor([True, False, False, False, False, True, True, True])
    given = batch() | {"row_B": rows, "max_mb": max_mb}
    found, forwards = counted(model, **given, **SETTINGS)
    torch.testing.assert_close(found, every * rows[:, None], atol=1e-5, rtol=0)
    assert found[0].max() > 0.1
    assert forwards == 1, "group 3 has nobody who wants it"


def test_surplus_batches_keep_sharded_processes_in_step_and_change_nothing(model):
    expected = transport_distances(model, **batch(), **SETTINGS)
    found, forwards = counted(model, **batch(), **SETTINGS, largest=lambda count: 5)
    assert forwards == 5 and torch.equal(found, expected)
    nobody = torch.zeros(8, dtype=torch.bool)
    nothing, forwards = counted(model, **batch(), **SETTINGS, row_B=nobody, largest=lambda count: 3)
    assert forwards == 3 and (nothing == 0).all()


def test_dropout_is_off_and_every_module_is_left_in_its_mode(model):
    expected = transport_distances(model, **batch(), **SETTINGS)
    model.train()
    model.lm_head.eval()
    torch.testing.assert_close(transport_distances(model, **batch(), **SETTINGS), expected)
    assert model.training and model.model.layers[0].training and not model.lm_head.training
    with pytest.raises(ValueError, match="boom"):
        transport_distances(Failing(model), **batch(), **SETTINGS)
    assert model.training, "also when a forward fails"


class Failing(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.module = inner

    def forward(self, **_):
        raise ValueError("boom")


def test_what_is_not_finite_stays_so_and_stays_in_its_group(model):
    clean = transport_distances(model, **batch(), **SETTINGS)
    with torch.no_grad():
        model.get_input_embeddings().weight[70] = math.nan  # the completion of one token, in group 7
    found = transport_distances(model, **batch(), **SETTINGS)
    mask, group = batch()["completions"].mask, torch.tensor(GROUP)
    assert found[mask & (group == 7)[:, None]].isnan().all()
    assert (found[~mask] == 0).all()
    torch.testing.assert_close(found[group != 7], clean[group != 7])


def test_half_precision_in_single_precision_out(model):
    expected = transport_distances(model, **batch(), **SETTINGS)
    found = transport_distances(model.to(torch.bfloat16), **batch(), **SETTINGS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.15, rtol=0)
    assert not torch.equal(found, expected)


@pytest.mark.parametrize(("rows", "width"), [(0, 5), (2, 0)])
def test_no_rows_and_no_columns_are_fine(model, rows, width):
    empty = torch.zeros(rows, width, dtype=torch.int64)
    found = transport_distances(
        model,
        Completions(ids=empty, attention=empty, mask=empty.bool()),
        left_padded([TeacherPrompt((5, 6))] * rows, PAD),
        torch.zeros(rows, dtype=torch.int64),
        torch.arange(rows) == 0,
        largest=lambda count: 1,
    )
    assert found.shape == (rows, width)


def test_without_the_library_one_error_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot.batch", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gear-rl\[shear\]'"):
        transport_distances(model, **batch())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_tokens": 0}, "window_tokens: 0; give 1"),
        ({"stride_tokens": 0}, r"stride_tokens: 0 must be 1 to window_tokens \(100\)"),
        ({"window_tokens": 20}, r"stride_tokens: 25 must be 1 to window_tokens \(20\)"),
    ],
)
def test_a_setting_outside_its_range_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TransportDistance(**changes)
