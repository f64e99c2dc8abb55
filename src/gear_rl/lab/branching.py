"""True advantages where no formula gives a token's value: rollouts that branch off from it.

The value of a place in a completion is the mean reward of continuations from there (VinePPO, arXiv:2410.01679).
They go through TRL's own loop, with the trainer's truncation and rewards, and share their noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from gear_rl.engine import Engine
from gear_rl.engines.trl import GEARTrainer
from gear_rl.engines.trl.evaluation import leave_no_trace
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.model.forwards import head_of, hidden_states
from gear_rl.rollouts import RolloutBatch
from gear_rl.tensor.lists import int_list

_KEPT = 1 << 26
"""Numbers of noise that are kept at most: 256 MB."""
_LOGITS = 1 << 24
"""Logits at a time at most: 64 MB."""


class SharedNoise:
    """Gumbel noise for every branch and every place of a completion, a function of ``seed`` alone.

    The largest of logits plus this noise is a sample of their softmax (the Gumbel-max trick). ``seed`` holds
    whole numbers from 0.

    >>> noise = SharedNoise(vocabulary=5, seed=(0,))
    >>> here, again, other = noise.rows([0, 0, 1], [3, 3, 3])
    >>> here.shape, bool((here == again).all()), bool((here == other).any())
    (torch.Size([5]), True, False)
    """

    def __init__(self, vocabulary: int, seed: tuple[int, ...]) -> None:
        self.vocabulary = vocabulary

        @lru_cache(max(1, _KEPT // vocabulary))
        def row(branch: int, place: int) -> Tensor:
            drawn = np.random.default_rng([*seed, branch, place]).gumbel(size=vocabulary)
            return torch.from_numpy(drawn).float()

        self._row = row

    def rows(self, branches: Sequence[int], places: Sequence[int]) -> Tensor:
        """The noise of each of these pairs of branch and place, float32, shape (N, V), on the CPU."""
        return torch.stack([self._row(m, t) for m, t in zip(branches, places, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A rollout to continue; equal ones end alike."""

    prompt: tuple[int, ...]
    """The ids of the prompt."""
    written: tuple[int, ...]
    """The ids of the completion so far."""
    branch: int
    """The branch of the noise that it continues with; those of two rows differ."""
    row: Mapping[str, Any] = field(compare=False)
    """The dataset's row."""


class Continuations:
    """Continues begun rollouts to their ends, and rewards them as the trainer does; no tool is called.

    The batch under way, metrics and logs do not change. ``ValueError`` for a model that sees images, and for
    several processes.
    """

    def __init__(self, trainer: GEARTrainer) -> None:
        if getattr(trainer, "_is_vlm", False):
            raise ValueError("oracle: rollouts cannot branch off where the model sees images; leave it out")
        self._trainer = trainer

    def __call__(self, begun: Sequence[Begun], noise: SharedNoise) -> list[float]:
        """The reward of each, in order; 0 where no reward function judged it."""
        trainer = self._trainer
        if trainer.accelerator.num_processes > 1:
            raise ValueError("oracle: rollouts branch off in one process; start it without accelerate")
        size = int(trainer.args.per_device_eval_batch_size)
        rewards = [0.0] * len(begun)
        # Those of one length together: a batch then ends at about the same time.
        order = sorted(range(len(begun)), key=lambda i: (len(begun[i].written), len(begun[i].prompt)))
        under_way, trainer.rollouts = trainer.rollouts, Rollouts()
        try:
            for first in range(0, len(order), size):
                chunk = order[first : first + size]
                some = [begun[i] for i in chunk]
                trainer._generate_single_turn = partial(self._completions, some, noise)
                for i, reward in zip(chunk, trainer.solve([one.row for one in some]), strict=True):
                    rewards[i] = reward or 0.0
        finally:
            trainer.rollouts = under_way
            vars(trainer).pop("_generate_single_turn", None)
        return rewards

    def _completions(
        self, begun: Sequence[Begun], noise: SharedNoise, *_: Any, **__: Any
    ) -> tuple[list[list[int]], None]:
        """In place of TRL's generation: the ids that are written already, then those that each branch draws."""
        trainer, tokenizer = self._trainer, self._trainer._tokenizer
        limit, ends = int(cast(int, trainer.max_completion_length)), trainer.eos_token_ids
        completions = [list(one.written) for one in begun]
        still = [n for n, ids in enumerate(completions) if len(ids) < limit and not (ids and ids[-1] in ends)]
        if not still:
            return completions, None
        # The place in the completion of the token that each writes next.
        places = [len(completions[n]) for n in still]
        shown = {"input_ids": [[*begun[n].prompt, *begun[n].written] for n in still]}
        encoded: Any = tokenizer.pad(shown, padding_side="left", return_tensors="pt").to(trainer.model.device)
        width = encoded["input_ids"].shape[1]
        branches, shift = [begun[n].branch for n in still], [place - width for place in places]
        config = GenerationConfig(
            max_new_tokens=limit - min(places),
            do_sample=False,
            repetition_penalty=1.0,  # the model's own file may set another
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=ends,
            disable_compile=True,
        )
        written = trainer.model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            generation_config=config,
            logits_processor=LogitsProcessorList(
                [_Drawn(noise, branches, shift, float(trainer.temperature))]
            ),
        )
        for n, ids in zip(still, written[:, width:].tolist(), strict=True):
            length = next((t + 1 for t, token in enumerate(ids) if token in ends), len(ids))
            completions[n] = (completions[n] + ids[:length])[:limit]
        return completions, None


class _Drawn(LogitsProcessor):
    """Makes the largest logit of each row the token that its branch draws in its place."""

    def __init__(self, noise: SharedNoise, branches: list[int], shift: list[int], temperature: float) -> None:
        self.noise, self.branches, self.shift, self.temperature = noise, branches, shift, temperature

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        places = [input_ids.shape[1] + shift for shift in self.shift]
        return scores.float() / self.temperature + self.noise.rows(self.branches, places).to(scores.device)


def branched_advantages(
    trainer: Any, branches: int
) -> Callable[[RolloutBatch, Engine], Float[Tensor, "B T"]]:
    """The function that estimates the true advantages of a trainer's rollouts from rewards alone, unbiased.

    A token's advantage is the mean reward of ``branches`` continuations after it less that of as many before it.
    A branch draws the token in place ``t`` of whatever it continues with the same noise, so the noise of what
    follows cancels. A branch that draws the completion's own token is followed only from where it leaves the
    completion. The advantages of a completion sum to its reward less the mean reward of the branches from its
    prompt. The trainer has to sample from the whole vocabulary, as it does by default, and has one process, no
    tools and no images (`Continuations`).
    """
    finish = Continuations(trainer)

    def true_advantage(batch: RolloutBatch, engine: Engine) -> Float[Tensor, "B T"]:
        completions, student = batch.completions, batch.student
        vocabulary = int(trainer.model.get_output_embeddings().weight.shape[0])
        noise = SharedNoise(vocabulary=vocabulary, seed=(trainer.args.seed, batch.step))
        # Each prompt has branches of its own, so that the errors of two prompts are independent.
        own = [[branches * group + m for m in range(branches)] for group in batch.group]
        drawn = _draw_tokens(trainer, batch, own, noise)
        # By completion and branch: the places where the branch leaves it, and the rollouts that begin there.
        leaves: list[tuple[int, list[tuple[int, Begun]]]] = []
        for b, row in enumerate(batch.rows):
            ids, trained = int_list(completions.ids[b]), int_list(completions.mask[b])
            prompt = tuple(int_list(student.ids_BP[b][student.attention_BP[b].bool()]))
            for branch, other in zip(own[b], map(int_list, drawn[b]), strict=True):
                places = [
                    (t, Begun(prompt=prompt, written=(*ids[:t], other[t]), branch=branch, row=row))
                    for t in range(len(ids))
                    if trained[t] and other[t] != ids[t]
                ]
                leaves.append((b, places))
        # Siblings that leave the same beginning in the same way are continued once.
        begun = [*dict.fromkeys(one for _, places in leaves for _, one in places)]
        rewards = dict(zip(begun, finish(begun, noise), strict=True))
        advantages = [[0.0] * completions.ids.shape[1] for _ in batch.rows]
        for b, places in leaves:
            after = batch.rewards[b] or 0.0  # beyond its last place a branch is the completion itself
            for t, one in reversed(places):
                before = rewards[one]
                advantages[b][t] += (after - before) / branches
                after = before
        return torch.tensor(advantages, device=completions.ids.device)

    return true_advantage


def _draw_tokens(
    trainer: Any, batch: RolloutBatch, own: Sequence[Sequence[int]], noise: SharedNoise
) -> Int[Tensor, "B M T"]:
    """The token that each branch draws in each place of a completion, given the completion's tokens before it."""
    completions, (count, width) = batch.completions, batch.completions.ids.shape
    ids = torch.cat([batch.student.ids_BP, completions.ids], -1)
    seen = torch.cat([batch.student.attention_BP, completions.attention], -1)
    size, tile = int(trainer.args.per_device_eval_batch_size), max(1, _LOGITS // noise.vocabulary)
    drawn = torch.zeros(count, len(own[0]), width, dtype=torch.long)
    with leave_no_trace(trainer):
        trainer.model.eval()  # as for the continuations
        head = head_of(trainer.model, trainer.temperature)
        for first in range(0, count, size):
            some = slice(first, first + size)
            hidden_NTD = hidden_states(trainer.model, ids[some], seen[some], num_tokens=width)
            for b, hidden_TD in enumerate(hidden_NTD, first):
                for begin in range(0, width, tile):
                    places = range(width)[begin : begin + tile]
                    logits = head.logits(hidden_TD[begin : begin + tile])
                    for m, branch in enumerate(own[b]):
                        rows = noise.rows([branch] * len(places), places).to(logits.device)
                        drawn[b, m, begin : begin + tile] = (logits + rows).argmax(-1).cpu()
    return drawn
