"""True advantages where no formula says what a token is worth: rollouts that branch off from it.

The value of a place in a completion is the mean reward of continuations from there (VinePPO, arXiv:2410.01679).
They go through TRL's own loop, with the trainer's tools, truncation and rewards, and with noise that they share.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from gear_rl.engines.trl import GEARTrainer
from gear_rl.engines.trl.evaluation import unnoticed
from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.lab.replay import serving
from gear_rl.signals.batch import RolloutBatch
from gear_rl.signals.engine import Engine
from gear_rl.signals.forwards import head_of, hidden_states
from gear_rl.tensor.lists import int_list

_KEPT = 1 << 26
"""So many numbers of noise are kept at most: 256 MB."""


@dataclass(slots=True)
class SharedNoise:
    """Gumbel noise for every branch and every place of a completion, decided by ``seed`` alone.

    What is likeliest after the noise is added to logits is a sample of their softmax (the Gumbel-max trick).

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
    """A rollout that is to go on."""

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

    Each is played again from its prompt: its turns up to there are given, and its tools are called as they were.
    Nothing of it is seen in the batch under way, in metrics or logs. ``ValueError`` for a model that sees images,
    for several processes, and for an environment that does not repeat itself.
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


_LOGITS = 1 << 24
"""So many logits at a time at most: 64 MB."""
Finish = Callable[[Sequence[Begun], SharedNoise], Sequence[float]]
"""The rewards of rollouts that go on from where they are."""


def branched(
    trainer: Any, finish: Finish, branches: int
) -> Callable[[RolloutBatch, Engine], Float[Tensor, "B T"]]:
    """What gives a trainer the true advantages of its rollouts where only their rewards are known.

    A token is worth the mean reward of ``branches`` continuations after it less that of as many before it, which
    is unbiased. A branch draws the token in place ``t`` of whatever it continues with the same noise, so the
    luck of what follows cancels, and a branch that draws the token that is there already is followed only from
    where it leaves the completion. The advantages of a completion add up to its reward less the mean reward of
    the branches from its prompt. The trainer has to sample from the whole vocabulary, as it does by default.
    """

    def true_advantage(batch: RolloutBatch, engine: Engine) -> Float[Tensor, "B T"]:
        ids = batch.completions.ids
        vocabulary = int(trainer.model.get_output_embeddings().weight.shape[0])
        noise = SharedNoise(vocabulary=vocabulary, seed=(trainer.args.seed, batch.step))
        # Each prompt has branches of its own, so that the errors of two prompts are independent.
        own = [[branches * group + m for m in range(branches)] for group in batch.group]
        leaves = _leaves(batch, own, _drawn(trainer, batch, own, noise))
        # Siblings that leave the same beginning in the same way share what comes of it.
        begun = {one.key: one for of_branch in leaves for places in of_branch for _, one in places}
        rewards = dict(zip(begun, finish([*begun.values()], noise), strict=True))
        worth = [[0.0] * ids.shape[1] for _ in leaves]
        for b, of_branch in enumerate(leaves):
            for places in of_branch:
                after = batch.rewards[b] or 0.0  # beyond its last leave a branch is the completion itself
                for t, one in reversed(places):
                    before = rewards[one.key]
                    worth[b][t] += (after - before) / branches
                    after = before
        return torch.tensor(worth, device=ids.device)

    return true_advantage


_Leaves = list[list[list[tuple[int, Begun]]]]
"""By completion and branch: the places where the branch leaves it, in order, and how it goes on from each."""


def _leaves(batch: RolloutBatch, own: Sequence[Sequence[int]], drawn: Int[Tensor, "B M T"]) -> _Leaves:
    completions, student = batch.completions, batch.student
    leaves: _Leaves = []
    for b, row in enumerate(batch.rows):
        ids, trained = int_list(completions.ids[b]), int_list(completions.mask[b])
        prompt = tuple(int_list(student.ids_BP[b][student.attention_BP[b].bool()]))
        leaves.append(
            [
                [
                    (t, Begun(prompt=prompt, written=(*ids[:t], other[t]), branch=branch, row=row))
                    for t in range(len(ids))
                    if trained[t] and other[t] != ids[t]
                ]
                for branch, other in zip(own[b], map(int_list, drawn[b]), strict=True)
            ]
        )
    return leaves


def _drawn(
    trainer: Any, batch: RolloutBatch, own: Sequence[Sequence[int]], noise: SharedNoise
) -> Int[Tensor, "B M T"]:
    """The token that each branch draws in each place of a completion, after the tokens that are really before."""
    completions, (count, width) = batch.completions, batch.completions.ids.shape
    ids = torch.cat([batch.student.ids_BP, completions.ids], -1)
    seen = torch.cat([batch.student.attention_BP, completions.attention], -1)
    size, tile = int(trainer.args.per_device_eval_batch_size), max(1, _LOGITS // noise.vocabulary)
    drawn = torch.zeros(count, len(own[0]), width, dtype=torch.long)
    with unnoticed(trainer):
        trainer.model.eval()  # as whoever goes on from there
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
