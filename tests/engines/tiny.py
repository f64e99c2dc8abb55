"""A Qwen3 of a few thousand random weights, a byte tokenizer with TRL's chat template, and a reward."""

import json
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
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


def llama2_tokenizer() -> PreTrainedTokenizerFast:
    """As that of Llama 2: words with the space before them, bytes for the rest, ``[INST]`` in plain text."""
    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bpe.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=specials, show_progress=False)
    bpe.train_from_iterator(["It is 42 . The answer is 42 . So user assistant INST"] * 9, trainer)
    state = json.loads(bpe.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = state["added_tokens"][:3]  # the bytes are in the vocabulary alone
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<unk>",
    )
    fast.chat_template = (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
    )
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
