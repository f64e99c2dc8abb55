"""Sampling completions of one turn from a model, and judging them. Knows no task, no method and no trainer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_rl.arena.model import CHAT_TEMPLATE_KWARGS, EOS
from gear_rl.arena.task import TEMPLATE, Reward
from gear_rl.signals.privileged import render

_MAX_NEW_TOKENS = 96
"""No completion is longer where the caller does not say otherwise; sampling stops earlier when all have ended."""


def prompt_text(tokenizer: Any, row: Mapping[str, Any], *, teacher: bool = False) -> str:
    """The text a completion follows: the student's prompt, or the teacher's with the privileged context.

    An agent's tools are the row's `tools`.
    """
    messages: Any = row["prompt"]
    if teacher and row["privileged_context"] is not None:
        messages = render(messages, row["privileged_context"], TEMPLATE)
    text = tokenizer.apply_chat_template(
        messages,
        tools=row.get("tools"),
        tokenize=False,
        add_generation_prompt=True,
        **CHAT_TEMPLATE_KWARGS,
    )
    return str(text)


def sample(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    *,
    teacher: bool = False,
    temperature: float = 1.0,
    greedy: bool = False,
    batch_size: int = 128,
    seed: int = 0,
    max_new_tokens: int = _MAX_NEW_TOKENS,
) -> list[str]:
    """One completion per row, without the closing token. The caller's random state is left as it was."""
    import torch

    prompts = [prompt_text(tokenizer, row, teacher=teacher) for row in rows]
    # Prompts of one length go together: less padding, and the whole batch ends at about the same time.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    completions = [""] * len(prompts)
    choice: dict[str, Any] = (
        {"do_sample": False}
        if greedy
        else {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    )
    was_training = model.training
    model.eval()
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []),
    ):
        torch.manual_seed(seed)
        for first in range(0, len(order), batch_size):
            chunk = order[first : first + batch_size]
            encoded = tokenizer(
                [prompts[i] for i in chunk], return_tensors="pt", padding=True, padding_side="left"
            ).to(model.device)
            ids = model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                **choice,
            )
            texts = tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :])
            for i, text in zip(chunk, texts, strict=True):
                completions[i] = text.split(EOS)[0]
    model.train(was_training)
    return completions


def accuracy(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    reward: Reward,
    *,
    teacher: bool = False,
    temperature: float = 1.0,
    greedy: bool = False,
    batch_size: int = 128,
    seed: int = 0,
    max_new_tokens: int = _MAX_NEW_TOKENS,
) -> list[float]:
    """The reward of one completion per row, judged with the row's column `answer`; the mean is the accuracy."""
    completions = sample(
        model,
        tokenizer,
        rows,
        teacher=teacher,
        temperature=temperature,
        greedy=greedy,
        batch_size=batch_size,
        seed=seed,
        max_new_tokens=max_new_tokens,
    )
    return reward(completions, answer=[row["answer"] for row in rows])
