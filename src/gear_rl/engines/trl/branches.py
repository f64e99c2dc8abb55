"""Rollouts that go on from any token, with noise that they share: they differ by what they read, not by luck."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from gear_rl.engines.trl.solve import judged, unnoticed
from gear_rl.engines.trl.trainer_type import Trainer

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
    _known: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor], repr=False)

    def rows(self, branches: Sequence[int], places: Sequence[int]) -> Tensor:
        """The noise of each of these pairs of branch and place, float32, shape (N, V), on the CPU."""
        return torch.stack([self._row(m, t) for m, t in zip(branches, places, strict=True)])

    def _row(self, branch: int, place: int) -> Tensor:
        key = (branch, place)
        if key not in self._known:
            if len(self._known) * self.vocabulary > _KEPT:
                self._known.clear()
            drawn = np.random.default_rng([*self.seed, branch, place]).gumbel(size=self.vocabulary)
            self._known[key] = torch.from_numpy(drawn).float()
        return self._known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A rollout that is to go on."""

    prompt: tuple[int, ...]
    """The ids of the prompt."""
    written: tuple[int, ...]
    """The ids of the completion so far, tool answers included."""
    branch: int
    """Which branch of the noise it goes on with."""
    row: Mapping[str, Any]
    """The dataset's row."""

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """What its end depends on: siblings that have it in common end alike.

        >>> Begun(prompt=(1, 4), written=(7,), branch=0, row={"answer": "2"}).key
        ((1, 4), (7,), 0)
        """
        return self.prompt, self.written, self.branch


Finish = Callable[[Sequence[Begun], SharedNoise], Sequence[float]]
"""The rewards of rollouts that go on from where they are."""


def written_out(trainer: Trainer) -> Finish:
    """How completions of one turn end: what the model writes, judged by the trainer's own reward functions."""

    def finish(begun: Sequence[Begun], noise: SharedNoise) -> Sequence[float]:
        whole = continuations(trainer, [one.key for one in begun], noise)
        texts = trainer._tokenizer.batch_decode(whole, skip_special_tokens=True)
        return judged(trainer, [one.row for one in begun], texts, whole)

    return finish


def continuations(
    trainer: Trainer,
    begun: Sequence[tuple[Sequence[int], Sequence[int], int]],
    noise: SharedNoise,
    *,
    batch_size: int = 256,
) -> list[list[int]]:
    """The ids of each begun completion to the end of its turn, sampled at the trainer's temperature.

    `begun` are the ids of a prompt, those of what is written so far, and the branch. A turn ends with the closing
    token, or where the completion has `noise.room` tokens; one that has is returned as it is.
    """
    model, tokenizer = trainer.model, trainer._tokenizer
    end = tokenizer.eos_token_id
    ids = [[*written] for _, written, _ in begun]
    todo = [i for i, own in enumerate(ids) if len(own) < noise.room and own[-1:] != [end]]
    # Those with as much to write go together: the whole batch ends at about the same time.
    todo.sort(key=lambda i: (len(ids[i]), len(begun[i][0])))
    with unnoticed(trainer):
        model.eval()
        for first in range(0, len(todo), batch_size):
            chunk = todo[first : first + batch_size]
            shown = {"input_ids": [[*begun[i][0], *ids[i]] for i in chunk]}
            encoded = tokenizer.pad(shown, padding_side="left", return_tensors="pt").to(model.device)
            width = encoded["input_ids"].shape[1]
            drawn = _Noise(
                noise,
                [begun[i][2] for i in chunk],
                [len(ids[i]) - width for i in chunk],
                float(trainer.args.temperature),
            )
            written = model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=noise.room - min(len(ids[i]) for i in chunk),
                do_sample=False,
                logits_processor=LogitsProcessorList([drawn]),
                pad_token_id=tokenizer.pad_token_id,
            )
            for i, row in zip(chunk, written[:, width:].tolist(), strict=True):
                turn = row[: row.index(end) + 1] if end in row else row
                ids[i] = (ids[i] + turn)[: noise.room]
    return ids


class _Noise(LogitsProcessor):
    """Makes the likeliest token of each row the one that its branch draws in its place."""

    def __init__(self, noise: SharedNoise, branches: list[int], shift: list[int], temperature: float) -> None:
        self.noise, self.branches, self.shift, self.temperature = noise, branches, shift, temperature

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        # A row that is full goes on, as its batch does; what it writes then is cut off.
        places = [min(input_ids.shape[1] + shift, self.noise.room - 1) for shift in self.shift]
        return scores / self.temperature + self.noise.rows(self.branches, places).to(scores)
