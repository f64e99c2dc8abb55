"""Padded batches from lists of ids, a model whose signals differ between tokens, and a count of its forwards."""

import contextlib

import torch
from torch import nn

from engines import tiny
from gear_rl.rollouts import Completions, left_padded


def right_padded(rows, fill=0, width=9):
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def completions_of(rows, masks=None, width=9, pad=0):
    attention = right_padded([[1] * len(row) for row in rows], 0, width)
    mask = attention.bool() if masks is None else right_padded(masks, 0, width).bool()
    return Completions(ids=right_padded(rows, pad, width), attention=attention, mask=mask)


def prompts_of(rows, pad=0):
    return left_padded(rows, pad)


def net(**settings) -> nn.Module:
    return tiny.louder(tiny.model(97, hidden_size=40, **settings), 12.0)


@contextlib.contextmanager
def counted(model: nn.Module):
    """The shape of the ids of every forward."""
    shapes = []
    handle = model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        handle.remove()


@contextlib.contextmanager
def process_group(folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    """By PyTorch's own FSDP 2, on one CPU process: parameters are DTensors, and only ``forward`` gathers them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def dropping(model: nn.Module) -> nn.Module:
    """In training mode with dropout, but for the first layer, which is in evaluation mode."""
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.model.layers[0].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]
