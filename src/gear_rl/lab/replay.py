"""Rollouts through a TRL trainer outside of its training: written by the caller, or sampled now.

Tools, rewards, signals and credit are those of a training step. No weight changes. One process only.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gear_rl.engines.trl import GEARTrainer
from gear_rl.engines.trl.engine import TRLEngine
from gear_rl.engines.trl.evaluation import unnoticed
from gear_rl.records import Record
from gear_rl.signals.batch import ForwardRequest, RolloutBatch
from gear_rl.signals.passes import ModelPasses

PassesOf = Callable[[ForwardRequest, ModelPasses], dict[str, Tensor]]
"""Answers a request for signals, by the engine's passes where it does not know them."""
Turns = Sequence[Sequence[int]]
"""The ids of each turn that a rollout samples, closing tokens included; what tools answer stands between."""
_TOO_FEW = "turns: a rollout calls a tool after its last turn; end it with a turn that calls none"


def replay(
    trainer: GEARTrainer,
    rows: Sequence[Mapping[str, Any]],
    turns: Sequence[Turns],
    *,
    batch: int = 64,
    advance: Callable[[int], None] | None = None,
    passes: PassesOf | None = None,
) -> list[Record]:
    """The record of every rollout, in order; rows of a group stand together, ``num_generations`` of them.

    ``batch`` rollouts go through the engine at a time (a multiple of the group). ``passes`` may know some of the
    signals already. The trainer's metrics and random state are left as they were. A teacher that follows the
    student is what it is before the first step: the student. ``ValueError`` if a rollout calls a tool after its
    last turn.
    """
    group = int(trainer.num_generations)
    batch = max(group, batch - batch % group)
    records: list[Record] = []
    for begin in range(0, len(rows), batch):
        own = [dict(row) for row in rows[begin : begin + batch]]
        with _serving(trainer, turns[begin : begin + batch]), _recording(trainer, records, passes):
            trainer._generate_and_score_completions(own)
        if advance is not None:
            advance(len(own))
    return records


def sample(trainer: GEARTrainer, rows: Sequence[Mapping[str, Any]], *, seed: int) -> RolloutBatch:
    """``num_generations`` rollouts of every row, as the credit step reads them; a seed draws the same again."""
    each = int(trainer.num_generations)
    inputs = [dict(row) for row in rows for _ in range(each)]
    tries, trainer.num_generations_eval = trainer.num_generations_eval, each
    try:
        with unnoticed(trainer):
            trainer.model.eval()  # in training it would assign credit
            torch.manual_seed(seed)
            return trainer.rollout_batch(trainer._generate_and_score_completions(inputs))
    finally:
        trainer.num_generations_eval = tries


def prompt_tokens(trainer: GEARTrainer, prompt: Any) -> int:
    """How many tokens the student's prompt has, with the trainer's chat template."""
    return len(trainer._tokenize_prompts([prompt])[0][0])


@contextmanager
def _serving(trainer: GEARTrainer, turns: Sequence[Turns]) -> Generator[None]:
    """While it is open, the policy "samples" the given turns."""
    turn = -1

    def sampled(rollouts: Sequence[int], ids: Sequence[Sequence[int]]) -> list[list[int]]:
        nonlocal turn
        turn += 1
        if any(turn >= len(turns[b]) for b in rollouts):
            raise ValueError(_TOO_FEW)
        return [list(turns[b][turn]) for b in rollouts]

    with serving(trainer, len(turns), sampled), unnoticed(trainer):
        trainer.model.train()  # credit is assigned in training only
        yield


@contextmanager
def serving(
    trainer: GEARTrainer,
    count: int,
    sample: Callable[[Sequence[int], Sequence[Sequence[int]]], list[list[int]]],
) -> Generator[None]:
    """While it is open, ``sample`` writes the turns of a batch of ``count`` rollouts in the policy's place.

    It is given which of the rollouts are to go on, and all ids of each so far, prompt and tool answers included.
    ``ValueError`` where TRL goes on with something else than was written.
    """
    active = list(range(count))
    written: list[list[int]] = [[] for _ in active]

    def serve(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        nonlocal active
        # Of those before, the ones whose tools answered; TRL keeps their order.
        waiting, still = iter(active), list[int]()
        for ids in prompt_ids:
            row = next((b for b in waiting if ids[: len(written[b])] == written[b]), None)
            if row is None:
                raise ValueError(_TOO_FEW)
            still.append(row)
        active = still
        sampled = sample(active, prompt_ids)
        for b, ids, new in zip(active, prompt_ids, sampled, strict=True):
            written[b] = [*ids, *new]
        return sampled, None

    trainer._generate_single_turn = serve
    try:
        yield
    finally:
        del trainer._generate_single_turn


@contextmanager
def _recording(trainer: GEARTrainer, records: list[Record], passes: PassesOf | None) -> Generator[None]:
    """While it is open, records go into the list alone, and ``passes`` is asked first."""
    subscribers = trainer.record_subscribers
    trainer.record_subscribers = [lambda batch: records.extend(batch)]
    if passes is not None:
        trainer.credit_engine = lambda *, in_loss=False: _Answered(trainer, passes, in_loss)
    try:
        yield
    finally:
        trainer.record_subscribers = subscribers
        vars(trainer).pop("credit_engine", None)


class _Answered(TRLEngine):
    """The trainer's engine, whose requests for signals ``passes`` answers."""

    def __init__(self, trainer: GEARTrainer, passes: PassesOf, in_loss: bool) -> None:
        super().__init__(trainer, in_loss=in_loss)
        self._answer = passes

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self._answer(request, self.passes)
