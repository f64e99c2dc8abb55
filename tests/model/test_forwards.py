"""What padding moves in a model."""

import pytest
import torch

from engines.positions import MODELS, made
from gear_rl.model.forwards import padding_moves_positions, takes_positions

TAKES = {"gpt2": True, "opt": True, "qwen3": True, "llama": True, "bloom": False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_what_padding_moves(name, dtype):
    model = made(name).to(dtype).train()
    assert takes_positions(model) is TAKES[name]
    assert padding_moves_positions(model) is (name == "gpt2")
    assert all(module.training for module in model.modules())
    # The definition: the same row with padding before it, as TRL's loss runs it.
    model.float().eval()
    row, mask = torch.tensor([[0] * 5 + [20, 21, 22]]), torch.tensor([[0] * 5 + [1] * 3])
    with torch.no_grad():
        there = model(input_ids=row, attention_mask=mask).logits[0, -1]
        here = model(input_ids=row[:, 5:]).logits[0, -1]
    assert bool((there - here).abs().max() > 0.05) is (name == "gpt2")
