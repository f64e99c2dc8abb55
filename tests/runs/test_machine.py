"""What a machine without an accelerator does with a pretrained model, and with the arena's."""

import pytest
import torch

from gear_rl.runs import machine
from gear_rl.runs.machine import has_bfloat16, machine_defaults, use_few_threads


@pytest.mark.parametrize(
    ("facts", "has"),
    [
        ({"flags": "fpu avx2 avx512f"}, False),
        ({"flags": "fpu avx512f avx512_bf16"}, True),
        ({"Features": "fp asimd bf16"}, True),
        ({}, False),
    ],
)
def test_only_a_pretrained_model_takes_bfloat16_and_never_as_weights_that_are_all_trained(
    monkeypatch, facts, has
):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(machine, "processor", lambda: facts)
    assert has_bfloat16() == has
    plain = machine_defaults()
    assert plain["bf16"] is False and "model_init_kwargs" not in plain
    half = {"model_init_kwargs": {"dtype": "bfloat16"}} if has else {}
    assert machine_defaults(pretrained=True, full=False) == plain | half
    assert machine_defaults(pretrained=True, full=True) == plain | {"bf16": has}


@pytest.mark.parametrize(("pretrained", "cores", "threads"), [(True, 8, 3), (False, 8, 1), (True, 2, 1)])
def test_threads(monkeypatch, pretrained, cores, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: cores)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert use_few_threads(pretrained=pretrained) == threads
    finally:
        torch.set_num_threads(before)
