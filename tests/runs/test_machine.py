"""What a machine without an accelerator does with a pretrained model, and with the arena's."""

import platform

import pytest
import torch

from gear_rl.cli import doctor
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
def test_the_processor_says_whether_it_has_bfloat16(monkeypatch, facts, has):
    monkeypatch.setattr(machine, "processor", lambda: facts)
    assert has_bfloat16() == has
    assert doctor._bfloat16().state == ("ok" if has else "note")


def test_only_a_pretrained_model_takes_it_and_never_as_weights_that_are_all_trained(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(machine, "has_bfloat16", lambda: True)
    half = {"model_init_kwargs": {"dtype": "bfloat16"}}
    plain = machine_defaults()
    assert plain["bf16"] is False and "model_init_kwargs" not in plain
    assert machine_defaults(pretrained=True, full=False) == plain | half
    assert machine_defaults(pretrained=True, full=True) == plain | {"bf16": True}
    monkeypatch.setattr(machine, "has_bfloat16", lambda: False)
    assert machine_defaults(pretrained=True, full=False) == plain


def test_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert use_few_threads(pretrained=True) == 3
        assert use_few_threads() == 1
        torch.set_num_threads(3)
        monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
        assert use_few_threads(pretrained=True) == 1
    finally:
        torch.set_num_threads(before)


def test_the_machine_is_in_words_and_without_its_name():
    words = machine.machine()
    assert "cores" in words
    assert not platform.node() or platform.node() not in words.split(", ")
