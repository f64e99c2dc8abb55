"""Models of a few thousand random weights that know positions in every way: absolute, rotary, ALiBi."""

from typing import Any

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engines.tiny import louder

_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_SPECIAL = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
_QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

MODELS: dict[str, Any] = {
    "gpt2": lambda v: GPT2LMHeadModel(GPT2Config(vocab_size=v, **_GPT, **_QUIET, **_SPECIAL)),
    "opt": lambda v: OPTForCausalLM(
        OPTConfig(vocab_size=v, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, **_PLAIN, **_SPECIAL)
    ),
    "qwen3": lambda v: Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=v, intermediate_size=48, num_key_value_heads=1, head_dim=16, **_PLAIN, **_SPECIAL
        )
    ),
    "llama": lambda v: LlamaForCausalLM(
        LlamaConfig(vocab_size=v, intermediate_size=48, **_PLAIN, **_SPECIAL)
    ),
    "bloom": lambda v: BloomForCausalLM(
        BloomConfig(vocab_size=v, hidden_size=32, n_layer=2, n_head=2, **_SPECIAL)
    ),
}


def made(name: str, vocab: int = 97) -> Any:
    """The model in evaluation mode."""
    torch.manual_seed(0)
    return louder(MODELS[name](vocab), 8.0)
