"""A trainer that distils, and one micro-batch of TRL's loss, made by hand."""

import torch
from peft import LoraConfig

from engines.running import trainer_of
from gear_rl.methods import Opsd

LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])


def speaking(model):
    """The model with an adapter that changes it already; peft's begins as nothing."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=g) / 3)
    return model


def made(folder, model, credit=None, **changes):
    trainer = trainer_of(folder, model, credit or Opsd(), **changes)
    speaking(trainer.model)
    return trainer


def left_padded(lengths, vocab, g):
    width = max(lengths)
    attention = (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()
    return torch.randint(9, vocab, (len(lengths), width), generator=g) * attention, attention


def micro_batch(vocab, num_rows=4, num_tokens=7, seed=0):
    """Inputs of TRL's loss: many lengths, tool output in every fourth row, numbers where nothing is distilled."""
    g = torch.Generator().manual_seed(seed)
    prompt, prompt_mask = left_padded([5, 2, 4, 3] * (num_rows // 4), vocab, g)
    teacher, teacher_mask = left_padded([9, 11, 6, 8] * (num_rows // 4), vocab, g)
    length = torch.tensor([7, 4, 1, 6] * (num_rows // 4))
    attention = (torch.arange(num_tokens) < length[:, None]).long()
    tool_mask = attention.clone()
    tool_mask[3::4, 2:4] = 0
    mask = tool_mask.bool()
    return {
        "prompt_ids": prompt,
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(9, vocab, mask.shape, generator=g) * attention,
        "completion_mask": attention,
        "tool_mask": tool_mask,
        "advantages": torch.randn(num_rows, generator=g),
        "num_items_in_batch": tool_mask.sum(),
        "old_per_token_logps": -4 - torch.rand(mask.shape, generator=g) * 4,
        "gear_distill_weight": torch.rand(mask.shape, generator=g),
        "gear_teacher_ids": teacher,
        "gear_teacher_attention": teacher_mask,
        "gear_reference_logprob": -4 - torch.rand(mask.shape, generator=g) * 4,
    }
