"""A random Qwen3 of two layers that trains on any CPU."""

from pathlib import Path
from typing import Any

WIDTH = 64
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def save_tiny_model(folder: Path) -> str:
    """A folder with a random Qwen3 and a byte tokenizer with TRL's Qwen3 chat template."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)  # student and teacher differ
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.normal_()
        head.normal_(std=0.2)
        # One coordinate is the same in every state, so that about one token in ten is the last.
        embedding[:, 0] = 4.0
        head[:, 0] = 0.0
        head[tokenizer.eos_token_id, 0] = 1.2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _tokenizer() -> Any:
    """Bytes, and one token each for the markup of chat and calls."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from gear_rl.arena.model import chat_template

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in _SPECIALS])
    bpe.add_tokens([AddedToken(text, normalized=False) for text in _MARKUP])
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.chat_template = chat_template("qwen3.jinja")
    return tokenizer
