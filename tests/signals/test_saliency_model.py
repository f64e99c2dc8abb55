"""Saliency and what is around a model: modes, hooks, checkpointing, adapters, DDP and FSDP."""

import contextlib
import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from signals.saliency_loops import (
    COMPLETIONS,
    EVERY,
    PAD,
    PROMPTS,
    SIGNALS,
    batch,
    every,
    found,
    net,
    saliency,
)


@pytest.fixture
def model() -> nn.Module:
    return net()


def agree(found, expected):
    for name in SIGNALS:
        scale = expected[name].max().item()
        torch.testing.assert_close(found[name], expected[name], atol=1e-5 * scale, rtol=1e-2, msg=name)


def test_bfloat16_weights_give_float32_signals(model):
    exact, rounded = every(model), every(model.bfloat16())
    assert all(values.dtype == torch.float32 for values in rounded.values())
    for name in ("answer_occlusion", "answer_activation"):
        both = torch.stack([exact[name][[0, 2]].flatten(), rounded[name][[0, 2]].flatten()])
        assert both.corrcoef()[0, 1] > 0.9, name
    assert (rounded["answer_gradient"] > 0).equal(exact["answer_gradient"] > 0)


def test_no_parameter_gets_a_gradient_and_every_mode_is_as_it_was(model):
    model.train()
    model.model.layers[0].eval()
    weight = model.model.layers[1].mlp.up_proj.weight
    weight.grad = torch.ones_like(weight)
    with torch.enable_grad():
        every(model)
        assert torch.is_grad_enabled()
    with torch.no_grad():
        every(model)
        assert not torch.is_grad_enabled()
    assert [p for p in model.parameters() if p.grad is not None and p is not weight] == []
    assert (weight.grad == 1).all()
    assert model.training and not model.model.layers[0].training and model.model.layers[1].training
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    assert not model.get_input_embeddings()._forward_hooks


def test_dropout_is_off(model):
    expected = every(model)
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    agree(every(model), expected)


@pytest.mark.parametrize("name", SIGNALS)
def test_an_error_leaves_the_model_as_it_was(model, name):
    model.train()
    model.gradient_checkpointing_enable()

    def refuse(module, args):
        raise RuntimeError("out of memory")

    handle = model.model.layers[2].register_forward_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        found(model, name)
    handle.remove()
    assert model.training and torch.is_grad_enabled()
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    hooks = model.get_input_embeddings()._forward_hooks.values()
    assert not any("swap" in getattr(hook, "__qualname__", "") for hook in hooks)
    agree(every(model), every(model.eval()))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("layer", ["input", "middle"])
def test_gradient_checkpointing_goes_on_and_changes_nothing(model, use_reentrant, layer):
    plain = {name: found(model, name, layer=layer) for name in SIGNALS}
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.train()
    runs = []
    handle = model.model.layers[2].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    agree({name: found(model, name, layer=layer) for name in SIGNALS}, plain)
    runs.clear()
    found(model, "answer_activation", layer=layer)
    handle.remove()
    assert len(runs) == 2, "once forward, once again for the backward"


def test_a_forward_that_somebody_patched_onto_a_layer_comes_back(model):
    layer = model.model.layers[0]
    patched = layer.forward
    layer.forward = patched
    model.gradient_checkpointing_enable()
    every(model)
    assert vars(layer)["forward"] is patched


@pytest.mark.parametrize("wrap", ["peft", "frozen", "ddp"])
def test_holds_under_what_wraps_a_model(model, wrap, tmp_path):
    expected = every(model)
    wrapped: nn.Module = model
    if wrap == "frozen":
        model.requires_grad_(False)
    elif wrap == "peft":
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
        merged = copy.deepcopy(wrapped).merge_and_unload()
        changed = every(merged)
        assert not torch.allclose(changed["answer_activation"], expected["answer_activation"], rtol=0.05)
        expected = changed
    with process_group(tmp_path) if wrap == "ddp" else contextlib.nullcontext():
        if wrap == "ddp":
            wrapped = nn.parallel.DistributedDataParallel(model)
            wrapped.register_forward_pre_hook(lambda *_: pytest.fail("DDP's own forward was called"))
        agree(every(wrapped), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_holds_under_fsdp(model, checkpointing, tmp_path):
    """PyTorch's own FSDP 2 on one CPU process: parameters are DTensors, and only `forward` gathers them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    expected = every(model)
    ids = torch.tensor([PROMPTS[0] + COMPLETIONS[0]])
    plain = copy.deepcopy(model)
    plain(input_ids=ids, labels=ids).loss.backward()
    with process_group(tmp_path):
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if checkpointing:
            model.gradient_checkpointing_enable()
        agree(every(model), expected)
        # And a training step after it is what it would have been.
        model(input_ids=ids, labels=ids).loss.backward()
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)


@contextlib.contextmanager
def process_group(folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_ddp_trains_on_after_it(model, tmp_path):
    """The reducer has seen nothing: the next step's gradients are those of a model that nobody looked into."""
    completions, prompts, region = batch()
    ids = torch.tensor([PROMPTS[0] + COMPLETIONS[0]])
    plain = copy.deepcopy(model)
    plain(input_ids=ids, labels=ids).loss.backward()
    with process_group(tmp_path):
        wrapped = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            model.zero_grad()
            saliency(wrapped, completions, prompts, region, EVERY, pad_id=PAD)
            wrapped(input_ids=ids, labels=ids).loss.backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_the_heads_weights_are_used_inside_their_context_only(model):
    inside, opened = [], []

    @contextlib.contextmanager
    def gathered(given):
        assert given is model
        opened.append(1)
        inside.append(1)
        try:
            yield
        finally:
            inside.pop()

    model.register_forward_pre_hook(
        lambda *_: pytest.fail("a forward under the gathered head") if inside else None
    )
    completions, prompts, region = batch()
    saliency(model, completions, prompts, region, EVERY, pad_id=PAD, head_context=gathered)
    # Occlusion: eleven forwards, by eight; gradient: clean and noisy; activation: once.
    assert len(opened) == 2 + 2 + 1
