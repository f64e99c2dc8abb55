"""A Qwen3 of a few thousand random weights, a byte tokenizer with TRL's chat template, and a reward."""

from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS + ADDED,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["user assistant system 1 plus 2 is 3"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return fast


def model(vocab: int, **changes: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    settings = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
    } | changes
    config = Qwen3Config(**settings)
    return Qwen3ForCausalLM(config)


def louder(net: Any, factor: float = 10.0) -> Any:
    """The model, in evaluation mode and less uniform, so that signals differ from token to token."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
    return net.eval()


def save(folder: Path) -> str:
    """A loadable folder."""
    fast = tokenizer()
    louder(model(len(fast))).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def rows(count: int = 16, **columns: Any) -> Dataset:
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"{i} plus {i + 1}"}],
                "privileged_context": f"{i} plus {i + 1} is {2 * i + 1}",
                "answer": str(2 * i + 1),
                **columns,
            }
            for i in range(count)
        ]
    )


def vowels(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that a random model gets by chance, so that groups have spread."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(sum(letter in "aeiou13579" for letter in text)) for text in texts]


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 12,
        "max_steps": 2,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "learning_rate": 1e-3,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    } | changes
