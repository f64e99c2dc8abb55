"""Default settings on a machine without an accelerator."""

import pytest
import torch

from gear_rl.runs import machine
from gear_rl.runs.machine import has_bfloat16, machine_defaults


@pytest.mark.parametrize(
    ("facts", "has"),
    [
        ({"flags": "fpu avx2 avx512f"}, False),
        ({"flags": "fpu avx512f avx512_bf16"}, True),
        ({"Features": "fp asimd bf16"}, True),
        ({}, False),
    ],
)
def test_a_pretrained_model_takes_bfloat16_unless_all_weights_are_trained(monkeypatch, facts, has):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(machine, "processor", lambda: facts)
    assert has_bfloat16() == has
    plain = machine_defaults()
    assert plain["bf16"] is False and "model_init_kwargs" not in plain
    half = {"model_init_kwargs": {"dtype": "bfloat16"}} if has else {}
    assert machine_defaults(pretrained=True, full=False) == plain | half
    assert machine_defaults(pretrained=True, full=True) == plain | {"bf16": has}
