"""What the warm starts of all tasks share: the optimizers, the training loop, the progress bar. Knows no task."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

Batch = tuple[Any, Any]
"""Token ids, and which of them the loss counts."""
Counted = tuple[list[int], list[bool]]
"""One demonstration: its token ids, and which of them the loss counts."""


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """One thread while a checkpoint is built; the caller's random state is left as it was.

    Two threads are slower on a model this small, and sums would depend on their number. Raises ValueError where
    torch is too old to have Muon.
    """
    import torch

    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"torch {torch.__version__}: the build needs torch.optim.Muon; install torch>=2.9")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def split(model: Any) -> tuple[list[Any], list[Any]]:
    """Hidden matrices, and everything else (embeddings, norms): Muon is made for the former only.

    >>> import torch
    >>> [len(parameters) for parameters in split(torch.nn.Linear(2, 3))]
    [1, 1]
    """
    hidden: list[Any] = []
    rest: list[Any] = []
    for name, parameter in model.named_parameters():
        (hidden if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
    return hidden, rest


def competence_optimizers(model: Any, matrix_rate: float, rate: float) -> list[Any]:
    """Muon for the hidden matrices, AdamW for everything else."""
    import torch

    hidden, rest = split(model)
    muon = torch.optim.Muon(
        hidden, lr=matrix_rate, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)]


def habit_optimizers(model: Any, rate: float) -> list[Any]:
    """AdamW for all parameters.

    >>> import torch
    >>> habit_optimizers(torch.nn.Linear(2, 3), rate=5e-4)[0].param_groups[0]["lr"]
    0.0005
    """
    import torch

    return [torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)]


def demonstration_batches(
    tokenizer: Any, batch_tokens: int, rng: random.Random, conversation: Callable[[int], list[dict[str, str]]]
) -> Iterator[Batch]:
    """Demonstrations in batches of similar length, so that little is padding; the loss counts on completions.

    `conversation` is given the number of batches made so far; no demonstration may be longer than `batch_tokens`.
    """
    (mark,) = tokenizer("assistant\n")["input_ids"]

    def draw(num_batches: int) -> list[Counted]:
        conversations = [conversation(num_batches) for _ in range(256)]
        texts = tokenizer.apply_chat_template(conversations, tokenize=False)
        rows: list[list[int]] = tokenizer(texts)["input_ids"]
        return [(row, [t >= row.index(mark) for t in range(len(row))]) for row in rows]

    return length_batches(tokenizer.pad_token_id, batch_tokens, rng, draw)


def length_batches(
    pad: int, batch_tokens: int, rng: random.Random, draw: Callable[[int], list[Counted]]
) -> Iterator[Batch]:
    """Batches of similar length from what `draw` gives, again and again; it is given the number made so far.

    >>> batches = length_batches(0, 4, random.Random(0), lambda _: [([5, 6], [False, True]), ([7], [True])])
    >>> next(batches)[0].tolist()
    [[7, 0], [5, 6]]
    """
    import torch

    num_batches = 0
    while True:
        batches: list[list[Counted]] = [[]]
        for row in sorted(draw(num_batches), key=lambda row: len(row[0])):
            if (len(batches[-1]) + 1) * len(row[0]) > batch_tokens:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        for batch in batches:
            width = max(len(ids) for ids, _ in batch)
            yield (
                torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in batch]),
                torch.tensor([counts + [False] * (width - len(counts)) for _, counts in batch]),
            )
        num_batches += len(batches)


def train(
    model: Any, batches: Iterator[Batch], optimizers: list[Any], steps: int, fall_steps: int, report: Report
) -> None:
    """Next-token training; the rates warm up, stay flat, then fall to 2 % over the last steps."""
    import torch

    top_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    model.train()
    for step in range(steps):
        scale = min(1.0, (step + 1) / 20, max(0.02, (steps - step) / max(1, fall_steps)))
        ids, counts = next(batches)
        loss = model(input_ids=ids, labels=torch.where(counts, ids, -100)).loss
        model.zero_grad()
        loss.backward()
        for optimizer, top_rate in zip(optimizers, top_rates, strict=True):
            optimizer.param_groups[0]["lr"] = scale * top_rate
            optimizer.step()
        report.step(loss.item())


class Report:
    """A progress bar with the loss, the accuracy on held-out problems and the time left.

    >>> with Report(None, total=2, every=1, show=False) as report:
    ...     report.step(loss=0.5)
    """

    def __init__(self, measure: Callable[[], float] | None, total: int, every: int, show: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._measure = measure
        self._every, self._step, self._loss = every, 0, 0.0
        self._bar = Progress(
            TextColumn("warm start"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}{task.fields[accuracy]}"),
            TimeRemainingColumn(),
            disable=not show,
        )
        shown = "" if measure is None else "  accuracy 0.00"
        self._task = self._bar.add_task("", total=total, loss=0.0, accuracy=shown)

    def __enter__(self) -> Report:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def step(self, loss: float) -> None:
        """Count one training step, and measure now and then."""
        self._step += 1
        self._loss = loss if self._step == 1 else 0.95 * self._loss + 0.05 * loss
        if self._step % self._every == 0 and self._measure is not None and not self._bar.disable:
            self._bar.update(self._task, accuracy=f"  accuracy {self._measure():.2f}")
        self._bar.update(self._task, advance=1, loss=self._loss)
