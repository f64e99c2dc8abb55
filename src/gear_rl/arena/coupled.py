"""Sampling with noise that several completions share: two of them differ by what they read, and not by luck.

Knows no task, no method and no trainer.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_KEPT = 1 << 26
"""So many numbers of noise are kept at most: 256 MB."""


@dataclass(slots=True)
class SharedNoise:
    """Gumbel noise for every branch and every place of a completion, the same numbers whenever it is asked for.

    What is likeliest after the noise is added to logits is a sample of their softmax (the Gumbel-max trick).
    Nothing but `seed` decides the numbers, so no random state is read or moved.

    >>> noise = SharedNoise(branches=2, room=9, vocabulary=5, seed=(0,))
    >>> here, again, other = noise.rows([0, 0, 1], [3, 3, 3])
    >>> here.shape, bool((here == again).all()), bool((here == other).any())
    (torch.Size([5]), True, False)
    """

    branches: int
    room: int
    """Tokens that a completion may have."""
    vocabulary: int
    seed: tuple[int, ...]
    """Whole numbers from 0."""
    _known: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any], repr=False)

    def rows(self, branches: Sequence[int], places: Sequence[int]) -> Any:
        """The noise of each of these pairs of branch and place, float32, shape (N, V), on the CPU."""
        import torch

        return torch.stack([self._row(m, t) for m, t in zip(branches, places, strict=True)])

    def _row(self, branch: int, place: int) -> Any:
        import numpy as np
        import torch

        key = (branch, place)
        if key not in self._known:
            if len(self._known) * self.vocabulary > _KEPT:
                self._known.clear()
            drawn = np.random.default_rng([*self.seed, branch, place]).gumbel(size=self.vocabulary)
            self._known[key] = torch.from_numpy(drawn).float()
        return self._known[key]


def continuations(
    model: Any,
    tokenizer: Any,
    begun: Sequence[tuple[Sequence[int], Sequence[int], int]],
    noise: SharedNoise,
    *,
    temperature: float = 1.0,
    batch_size: int = 256,
) -> list[list[int]]:
    """The ids of each begun completion to the end of its turn, sampled with the noise of a branch.

    `begun` are the ids of a prompt, those of what is written so far, and the branch. A turn ends with the closing
    token, or where the completion has `noise.room` tokens; one that has is returned as it is.
    """
    import torch
    from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

    class Noise(LogitsProcessor):
        def __init__(self, branches: list[int], shift: list[int]) -> None:
            self.branches, self.shift = branches, shift

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            # A row that is full goes on, as its batch does; what it writes then is cut off.
            places = [min(input_ids.shape[1] + shift, noise.room - 1) for shift in self.shift]
            return scores / temperature + noise.rows(self.branches, places).to(scores)

    end = tokenizer.eos_token_id
    ids = [[*written] for _, written, _ in begun]
    todo = [i for i, own in enumerate(ids) if len(own) < noise.room and own[-1:] != [end]]
    # Those with as much to write go together: the whole batch ends at about the same time.
    todo.sort(key=lambda i: (len(ids[i]), len(begun[i][0])))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for first in range(0, len(todo), batch_size):
            chunk = todo[first : first + batch_size]
            shown = {"input_ids": [[*begun[i][0], *ids[i]] for i in chunk]}
            encoded = tokenizer.pad(shown, padding_side="left", return_tensors="pt").to(model.device)
            width = encoded["input_ids"].shape[1]
            written = model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=noise.room - min(len(ids[i]) for i in chunk),
                do_sample=False,
                logits_processor=LogitsProcessorList(
                    [Noise([begun[i][2] for i in chunk], [len(ids[i]) - width for i in chunk])]
                ),
                pad_token_id=tokenizer.pad_token_id,
            )
            for i, row in zip(chunk, written[:, width:].tolist(), strict=True):
                turn = row[: row.index(end) + 1] if end in row else row
                ids[i] = (ids[i] + turn)[: noise.room]
    model.train(was_training)
    return ids
