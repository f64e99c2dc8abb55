"""The arena's small Qwen3 model and its tokenizer: load them, render prompts, sample. Trains nothing.

Models and tokenizers are annotated `Any` throughout the arena: transformers' own types fail strict checking.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gear_rl.arena.task import DEFAULT_TASK, Completion, get_task

CHAT_TEMPLATE_KWARGS: dict[str, Any] = {"enable_thinking": False}
"""For `GRPOConfig(chat_template_kwargs=...)`: the empty think block ends the prompt."""
PAD, EOS = "<|endoftext|>", "<|im_end|>"
_MAX_NEW_TOKENS = 96
"""No completion of one turn is longer; sampling stops earlier when all have ended."""
_BATCH = 128


def chat_template(name: str = "qwen3_training.jinja") -> str:
    """A Qwen3 chat template of this package, by default the prefix-preserving one.

    Both are copies of TRL's (`templates/README.md`), so that the arena needs no trainer.

    >>> "<|im_start|>" in chat_template()
    True
    """
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def load(path: str | Path | None = None, *, task: str = DEFAULT_TASK) -> tuple[Any, Any]:
    """Model in float32 and tokenizer, by default from the task's shipped checkpoint.

    Uses no network. Raises FileNotFoundError if there is no checkpoint.
    """
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    folder = get_task(task).checkpoint if path is None else Path(path)
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"no checkpoint in {folder}: see docs/arena.md")
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    tokenizer.chat_template = chat_template()
    return model.eval(), tokenizer


def answer_text(content: str) -> str:
    """The text after an assistant turn: the rest of its line, the tool's answer, the header of the next turn.

    >>> answer_text("bob").splitlines()[2:5]
    ['<tool_response>', 'bob', '</tool_response><|im_end|>']
    """
    return (
        f"\n<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def tokens(tokenizer: Any, completion: Completion) -> list[list[int]]:
    """The ids of each text of a completion, exactly as TRL's tool loop joins them.

    A turn of the model is tokenised alone and ends with the closing token. Between turns are the tool's answer
    and the header of the next turn.
    """
    texts = [answer_text(text) if place % 2 else text + EOS for place, text in enumerate(completion)]
    return [tokenizer(text)["input_ids"] for text in texts]


def prompt_text(tokenizer: Any, row: Mapping[str, Any]) -> str:
    """The text that a completion of a row's prompt follows."""
    text = tokenizer.apply_chat_template(
        row["prompt"], tokenize=False, add_generation_prompt=True, **CHAT_TEMPLATE_KWARGS
    )
    return str(text)


def sample(model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> list[str]:
    """One completion of one turn per row, without the closing token; restores the caller's random state."""
    import torch

    prompts = [prompt_text(tokenizer, row) for row in rows]
    # Prompts of one length share a batch: less padding, and the batch ends at about the same time.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    completions = [""] * len(prompts)
    was_training = model.training
    model.eval()
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []),
    ):
        torch.manual_seed(seed)
        for first in range(0, len(order), _BATCH):
            chunk = order[first : first + _BATCH]
            encoded = tokenizer(
                [prompts[i] for i in chunk], return_tensors="pt", padding=True, padding_side="left"
            ).to(model.device)
            ids = model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=_MAX_NEW_TOKENS,
                pad_token_id=tokenizer.pad_token_id,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
            )
            texts = tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :])
            for i, text in zip(chunk, texts, strict=True):
                completions[i] = text.split(EOS)[0]
    model.train(was_training)
    return completions
