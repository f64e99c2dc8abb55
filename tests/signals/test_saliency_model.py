"""Saliency and what is around a model: modes, hooks, checkpointing, adapters, DDP and FSDP."""

import contextlib
import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from signals.rows import process_group, sharded
from signals.saliency_loops import COMPLETIONS, PROMPTS, SIGNALS, every, found, net

IDS = torch.tensor([PROMPTS[0] + COMPLETIONS[0]])


@pytest.fixture
def model() -> nn.Module:
    return net()


def agree(values, expected):
    for name in SIGNALS:
        scale = expected[name].max().item()
        torch.testing.assert_close(values[name], expected[name], atol=1e-5 * scale, rtol=1e-2, msg=name)


def gradients(model):
    """Those of a training step; they are the same where nothing else was done to the model."""
    model(input_ids=IDS, labels=IDS).loss.backward()
    return [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters()]


def test_bfloat16_weights_give_float32_signals(model):
    exact, rounded = every(model), every(model.bfloat16())
    assert all(values.dtype == torch.float32 for values in rounded.values())
    for name in ("answer_occlusion", "answer_activation"):
        both = torch.stack([exact[name][[0, 2]].flatten(), rounded[name][[0, 2]].flatten()])
        assert both.corrcoef()[0, 1] > 0.9, name
    assert (rounded["answer_gradient"] > 0).equal(exact["answer_gradient"] > 0)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("layer", ["input", "middle"])
def test_gradient_checkpointing_goes_on_and_changes_nothing(model, use_reentrant, layer):
    plain = {name: found(model, name, layer=layer) for name in SIGNALS}
    patched = model.model.layers[0].forward = model.model.layers[0].forward  # by somebody else
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.train()
    runs = []
    model.model.layers[2].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    agree({name: found(model, name, layer=layer) for name in SIGNALS}, plain)
    runs.clear()
    found(model, "answer_activation", layer=layer)
    assert len(runs) == 2, "once forward, once again for the backward"
    assert vars(model.model.layers[0])["forward"] is patched


@pytest.mark.parametrize("wrap", ["peft", "frozen", "ddp", "fsdp", "fsdp and checkpointing"])
def test_holds_under_what_wraps_a_model(model, wrap, tmp_path):
    expected, plain = every(model), copy.deepcopy(model)
    with process_group(tmp_path) if "dp" in wrap else contextlib.nullcontext():
        if wrap == "frozen":
            agree(every(model.requires_grad_(False)), expected)
        elif wrap == "peft":
            adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).eval()
            torch.manual_seed(0)
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    nn.init.normal_(parameter, std=0.1)
            merged = every(copy.deepcopy(adapted).merge_and_unload())
            assert not torch.allclose(merged["answer_activation"], expected["answer_activation"], rtol=0.05)
            agree(every(adapted), merged)
        elif wrap == "ddp":
            wrapped = nn.parallel.DistributedDataParallel(model)
            handle = wrapped.register_forward_pre_hook(lambda *_: pytest.fail("DDP's own forward was called"))
            agree(every(wrapped), expected)
            handle.remove()
            torch.testing.assert_close(gradients(wrapped), gradients(plain))
        else:
            if wrap != "fsdp":
                model.gradient_checkpointing_enable()
            agree(every(sharded(model)), expected)
            torch.testing.assert_close(gradients(model), gradients(plain))
