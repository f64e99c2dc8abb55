"""Rollouts that go on from any token through TRL's own loop, with noise that they share.

Tools, truncation and rewards are the trainer's; only the tokens are drawn otherwise. Knows no method.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from gear_rl.engines.trl import GEARTrainer
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.lab.replay import serving

_KEPT = 1 << 26
"""So many numbers of noise are kept at most: 256 MB."""


@dataclass(slots=True)
class SharedNoise:
    """Gumbel noise for every branch and every place of a completion, the same numbers whenever it is asked for.

    What is likeliest after the noise is added to logits is a sample of their softmax (the Gumbel-max trick).
    Nothing but `seed` decides the numbers, so no random state is read or moved.

    >>> noise = SharedNoise(vocabulary=5, seed=(0,))
    >>> here, again, other = noise.rows([0, 0, 1], [3, 3, 3])
    >>> here.shape, bool((here == again).all()), bool((here == other).any())
    (torch.Size([5]), True, False)
    """

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
            while (len(self._known) + 1) * self.vocabulary > _KEPT and self._known:
                del self._known[next(iter(self._known))]
            drawn = np.random.default_rng([*self.seed, branch, place]).gumbel(size=self.vocabulary)
            self._known[key] = torch.from_numpy(drawn).float()
        return self._known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A rollout that is to go on.

    >>> Begun(prompt=(1, 4), written=(7,), branch=0, row={"answer": "2"}).key
    ((1, 4), (7,), 0)
    """

    prompt: tuple[int, ...]
    """The ids of the prompt."""
    written: tuple[int, ...]
    """The ids of the completion so far, tool answers included."""
    branch: int
    """Which branch of the noise it goes on with; those of two rows differ."""
    row: Mapping[str, Any]
    """The dataset's row."""

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """What its end depends on: siblings that have it in common end alike."""
        return self.prompt, self.written, self.branch


class Continuations:
    """Plays begun rollouts to their ends, through a trainer's own loop and with its own rewards.

    A rollout that was begun is played again from its prompt: its turns up to there are given, and its tools are
    called as they were. Nothing of it is seen in the batch under way, in metrics or logs. Raises ``ValueError``
    for a model that sees images, for several processes, and where a prompt or a tool's answer is not what it
    was: an environment has to repeat itself.
    """

    def __init__(self, trainer: GEARTrainer) -> None:
        if getattr(trainer, "_is_vlm", False):
            raise ValueError("oracle: rollouts cannot branch off where the model sees images; leave it out")
        self._trainer = trainer
        self._environments: dict[Any, list[Any]] = {}

    def __call__(self, begun: Sequence[Begun], noise: SharedNoise) -> list[float]:
        """The reward of each, in order; 0 where no reward function judged it."""
        trainer = self._trainer
        if trainer.accelerator.num_processes > 1:
            raise ValueError("oracle: rollouts branch off in one process; start it without accelerate")
        size = int(trainer.args.per_device_eval_batch_size)
        rewards = [0.0] * len(begun)
        # Those with as much to write go together: a batch ends at about the same time.
        order = sorted(range(len(begun)), key=lambda i: (len(begun[i].written), len(begun[i].prompt)))
        with self._apart():
            for first in range(0, len(order), size):
                chunk = order[first : first + size]
                turns = _Turns(trainer, [begun[i] for i in chunk], noise)
                with serving(trainer, len(chunk), turns):
                    ends = trainer.solve([begun[i].row for i in chunk])
                for i, reward in zip(chunk, ends, strict=True):
                    rewards[i] = reward or 0.0
        return rewards

    @contextmanager
    def _apart(self) -> Generator[None]:
        """The batch under way keeps its state, and its environments."""
        trainer: Any = self._trainer
        rollouts, pool = trainer.rollouts, getattr(trainer, "_environment_pool", None)
        guard = trainer.tool_guard
        trainer.rollouts, answers, guard.answers = Rollouts(), guard.answers, {}
        if pool is not None:
            trainer._environment_pool = {name: self._environments.setdefault(name, []) for name in pool}
        try:
            yield
        finally:
            trainer.rollouts, guard.answers = rollouts, answers
            if pool is not None:
                trainer._environment_pool = pool


@dataclass(slots=True)
class _Turns:
    """Writes the turns of begun rollouts: first what is written already, then what their branch draws."""

    trainer: GEARTrainer
    begun: Sequence[Begun]
    noise: SharedNoise

    def __call__(self, rollouts: Sequence[int], ids: Sequence[Sequence[int]]) -> list[list[int]]:
        turns: list[list[int]] = []
        for b, so_far in zip(rollouts, ids, strict=True):
            whole = [*self.begun[b].prompt, *self.begun[b].written]
            if [*so_far[: len(whole)]] != whole[: len(so_far)]:
                raise ValueError(
                    f"environment: what was {self._text(whole)!r} is {self._text(so_far)!r} where a rollout is "
                    "played again; the oracle needs an environment that repeats itself"
                )
            turns.append(self._to_the_end(whole[len(so_far) :]))
        return self._written_out(rollouts, ids, turns)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.trainer._tokenizer.decode([*ids][-40:]))

    def _to_the_end(self, ids: list[int]) -> list[int]:
        """Up to the token that ends the turn, if there is one."""
        ends = self.trainer.eos_token_ids
        return ids[: next((t + 1 for t, token in enumerate(ids) if token in ends), len(ids))]

    def _written_out(
        self, rollouts: Sequence[int], ids: Sequence[Sequence[int]], turns: list[list[int]]
    ) -> list[list[int]]:
        trainer, model, tokenizer = self.trainer, self.trainer.model, self.trainer._tokenizer
        prompts = [len(self.begun[b].prompt) for b in rollouts]
        # The place in the completion of the token that each would write next.
        places = [len(i) + len(turn) - n for i, turn, n in zip(ids, turns, prompts, strict=True)]
        room = int(cast(int, trainer.max_completion_length))
        open_turns = [
            n
            for n, turn in enumerate(turns)
            if places[n] < room and not (turn and turn[-1] in trainer.eos_token_ids)
        ]
        if not open_turns:
            return turns
        shown = {"input_ids": [[*ids[n], *turns[n]] for n in open_turns]}
        encoded: Any = tokenizer.pad(shown, padding_side="left", return_tensors="pt").to(model.device)
        width = encoded["input_ids"].shape[1]
        drawn = _Drawn(
            self.noise,
            [self.begun[rollouts[n]].branch for n in open_turns],
            [places[n] - width for n in open_turns],
            float(trainer.temperature),
        )
        config = GenerationConfig(
            max_new_tokens=room - min(places[n] for n in open_turns),
            do_sample=False,
            repetition_penalty=1.0,  # a model's own file may say another
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=trainer.eos_token_ids,
            disable_compile=True,
        )
        written = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            generation_config=config,
            logits_processor=LogitsProcessorList([drawn]),
        )
        for n, row in zip(open_turns, written[:, width:].tolist(), strict=True):
            turns[n] = (turns[n] + self._to_the_end(row))[: room - places[n] + len(turns[n])]
        return turns


class _Drawn(LogitsProcessor):
    """Makes the likeliest token of each row the one that its branch draws in its place."""

    def __init__(self, noise: SharedNoise, branches: list[int], shift: list[int], temperature: float) -> None:
        self.noise, self.branches, self.shift, self.temperature = noise, branches, shift, temperature

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        places = [input_ids.shape[1] + shift for shift in self.shift]
        return scores.float() / self.temperature + self.noise.rows(self.branches, places).to(scores.device)
