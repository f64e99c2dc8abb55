"""Rollouts through a TRL trainer outside of its training: given by the caller, or sampled now.

Tools, rewards, signals and credit are those of a training step. No weight changes. One process only.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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
"""Computes the signals of a request, by the engine's passes where it has them not yet."""
Turns = Sequence[Sequence[int]]
"""The ids of each turn that a rollout samples, closing tokens included; tool answers stand between them."""
Sampler = Callable[[Sequence[int], Sequence[Sequence[int]]], list[list[int]]]
"""The next turns of some rollouts of a batch, from their indices and all ids of each so far."""
_TOO_FEW = "turns: a rollout calls a tool after its last turn; end it with a turn that calls none"


def replay(
    trainer: GEARTrainer,
    rows: Sequence[Mapping[str, Any]],
    turns: Sequence[Turns],
    *,
    batch: int = 64,
    advance: Callable[[int], None] = lambda rows: None,
    passes: PassesOf | None = None,
) -> list[Record]:
    """The record of every rollout, in order; rows of a group stand together, ``num_generations`` of them.

    ``batch`` rollouts go through the engine at a time (a multiple of the group). ``passes`` replaces the engine's
    own. The trainer's metrics and random state stay as they were. A teacher that follows the student is the
    student, as before the first step. ``ValueError`` if a rollout calls a tool after its last turn.
    """
    group = int(trainer.num_generations)
    batch = max(group, batch - batch % group)
    records: list[Record] = []
    subscribers = trainer.record_subscribers
    trainer.record_subscribers = [lambda batch: records.extend(batch)]
    if passes is not None:
        trainer.credit_engine = partial(_Answered, trainer, passes)
    try:
        for first in range(0, len(rows), batch):
            own = [dict(row) for row in rows[first : first + batch]]
            given = [iter(one) for one in turns[first : first + batch]]

            def sampler(rollouts: Sequence[int], _: Any, given: Any = given) -> list[list[int]]:
                sampled: list[Any] = [next(given[b], None) for b in rollouts]
                if None in sampled:
                    raise ValueError(_TOO_FEW)
                return [list(turn) for turn in sampled]

            with serving(trainer, len(own), sampler), unnoticed(trainer):
                trainer.model.train()  # credit is assigned in training only
                trainer._generate_and_score_completions(own)
            advance(len(own))
    finally:
        trainer.record_subscribers = subscribers
        vars(trainer).pop("credit_engine", None)
    return records


class _Answered(TRLEngine):
    """The trainer's engine with other passes."""

    def __init__(self, trainer: GEARTrainer, passes_of: PassesOf, *, in_loss: bool = False) -> None:
        super().__init__(trainer, in_loss=in_loss)
        self._passes_of = passes_of

    def forward(self, request: ForwardRequest) -> dict[str, Tensor]:
        return self._passes_of(request, self.passes)


def sample(trainer: GEARTrainer, rows: Sequence[Mapping[str, Any]], *, seed: int) -> RolloutBatch:
    """``num_generations`` rollouts of every row, as the credit step reads them; a seed draws the same again."""
    each = int(trainer.num_generations)
    inputs = [dict(row) for row in rows for _ in range(each)]
    tries, trainer.num_generations_eval = trainer.num_generations_eval, each
    try:
        with unnoticed(trainer):
            trainer.model.eval()  # in training it would assign credit
            torch.manual_seed(seed)
            return trainer.rollouts.batch(trainer, trainer._generate_and_score_completions(inputs))
    finally:
        trainer.num_generations_eval = tries


@contextmanager
def serving(trainer: GEARTrainer, count: int, sampler: Sampler) -> Generator[None]:
    """While it is open, ``sampler`` writes the turns of a batch of ``count`` rollouts in place of the policy.

    ``ValueError`` where TRL continues from other ids than the sampler wrote.
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
        sampled = sampler(active, prompt_ids)
        for b, ids, new in zip(active, prompt_ids, sampled, strict=True):
            written[b] = [*ids, *new]
        return sampled, None

    trainer._generate_single_turn = serve
    try:
        yield
    finally:
        del trainer._generate_single_turn
