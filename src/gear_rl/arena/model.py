"""The arena's tokenizer and its small Qwen3 model: build, load, save. Trains nothing.

Models and tokenizers are annotated `Any` throughout the arena: transformers' own types do not stand up to
strict checking.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gear_rl.arena.task import DEFAULT_TASK, get_task

CHAT_TEMPLATE_KWARGS: dict[str, Any] = {"enable_thinking": False}
"""For `GRPOConfig(chat_template_kwargs=...)`: the empty think block ends the prompt."""

PAD, EOS = "<|endoftext|>", "<|im_end|>"
_SPECIAL = (PAD, "<|im_start|>", EOS)
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
NUMBERS = tuple(f"{n:02d}" for n in range(100))
"""The numbers of every task, one token each."""


def chat_template(name: str = "qwen3_training.jinja") -> str:
    """A Qwen3 chat template of this package, by default the prefix-preserving one.

    Both are copies of TRL's (`templates/README.md`), so that the arena needs no trainer.

    >>> "<|im_start|>" in chat_template()
    True
    """
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def build_tokenizer(texts: Iterable[str], atoms: Sequence[str], *, vocab_size: int = 512) -> Any:
    """A byte-level BPE tokenizer whose merges come from `texts`; any text survives encoding and decoding.

    Each of `atoms` is one token. `vocab_size` counts bytes and merges, not the atoms.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    # No word splitting, so that boilerplate melts into few tokens; but a blank line stays a token of its
    # own, since the prompt ends with one and no merge may reach across into the completion.
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    # Training does not cut at added tokens (encoding does), so the pieces between them are cut here.
    added = sorted((*_SPECIAL, *_MARKUP, *atoms), key=len, reverse=True)
    cut = re.compile("|".join(re.escape(token) for token in added))
    pieces = [piece for text in texts for piece in cut.split(text) if piece]
    bpe.train_from_iterator(
        pieces,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=8,
            special_tokens=list(_SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(token, normalized=False) for token in (*_MARKUP, *atoms)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def build_model(tokenizer: Any, seed: int, *, circles: bool = True) -> Any:
    """An untrained model of 0.8 million parameters; with `circles`, numbers begin as neighbours of each other."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(config)
    # Start with number tokens on circles and an embedding wide enough to matter next to the layers' output:
    # the facts are then learned in a minute instead of five. The last norm keeps the tied head's logits small.
    values = torch.arange(100.0)[:, None]
    angles = 2 * math.pi * values * torch.arange(1.0, 33.0)[None] / 100
    first: int = tokenizer.convert_tokens_to_ids("00")
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding.mul_(4)
        if circles:
            embedding[first : first + 100, :64] = 0.16 * torch.cat([angles.cos(), angles.sin()], dim=1)
        model.model.norm.weight.fill_(0.25)
    return model


def save(model: Any, tokenizer: Any, out_dir: str | Path) -> None:
    """Write model and tokenizer, the weights in bfloat16; the chat template is the package's."""
    import torch

    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(out_dir, state_dict=weights)
    tokenizer.backend_tokenizer.no_padding()  # the last call's padding would be saved otherwise
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        tokenizer.save_pretrained(out_dir)
    finally:
        tokenizer.chat_template = template


def load(path: str | Path | None = None, *, task: str = DEFAULT_TASK) -> tuple[Any, Any]:
    """Model in float32 and tokenizer, by default from the task's shipped checkpoint.

    Reaches no network. Raises FileNotFoundError where there is no checkpoint.
    """
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    folder = get_task(task).checkpoint if path is None else Path(path)
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"no checkpoint in {folder}: build one with 'gear arena build'")
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    tokenizer.chat_template = chat_template()
    return model.eval(), tokenizer
