"""``benchmarks prm``: a process reward model of the codebook, trained on right and random codes."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3ForTokenClassification

from gear_rl.arena.codebook import TASK
from gear_rl.arena.codebook.problem import RIGHT, SYMBOLS, Problem
from gear_rl.arena.codes import CODES
from gear_rl.arena.model import load, prompt_text, tokens

UNLABELLED = -100


def train_prm(folder: Path, *, steps: int = 400, batch: int = 32, symbols: Sequence[int] = (8, 24)) -> float:
    """Train the shipped model as a token classifier: class 0 for a wrong code, 1 for every other token.

    Saves it with its tokenizer, and returns the share of the last batch's wrong codes that it finds.
    """
    _, tokenizer = load(task=TASK.name)
    torch.manual_seed(0)
    model: Any = Qwen3ForTokenClassification.from_pretrained(
        TASK.checkpoint, num_labels=2, dtype=torch.float32
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw, right = random.Random(0), 0.0
    for _ in range(steps):
        rows = [_row(tokenizer, draw, draw.randint(*symbols)) for _ in range(batch)]
        ids = pad_sequence([torch.tensor(ids) for ids, _ in rows], batch_first=True)
        label = pad_sequence([torch.tensor(own) for _, own in rows], True, UNLABELLED)
        output = model(input_ids=ids, labels=label)
        called = output.logits.argmax(-1)
        wrong = label == 0
        right = float(((called == label) & wrong).sum() / wrong.sum())
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return right


def _row(tokenizer: Any, draw: random.Random, symbols: int) -> tuple[list[int], list[int]]:
    """The ids of a prompt and of a completion with half its codes random, and the class of every token."""
    problem = Problem(tuple(draw.sample(SYMBOLS, symbols)), ((),) * (symbols - 1))
    own = [RIGHT[name] if draw.random() < 0.5 else draw.choice(CODES) for name in problem.symbols]
    prompt = tokenizer(prompt_text(tokenizer, {"prompt": [{"role": "user", "content": problem.text}]}))[
        "input_ids"
    ]
    [wrote], [due] = tokens(tokenizer, (problem.write(own),)), tokens(tokenizer, problem.solve())
    classes = [int(token == expected) for token, expected in zip(wrote, due, strict=True)]
    return prompt + wrote, [UNLABELLED] * len(prompt) + classes
