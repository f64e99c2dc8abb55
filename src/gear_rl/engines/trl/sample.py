"""Completions that the policy samples now, as the credit step reads them; nothing is trained or credited."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gear_rl.credit.batch import RolloutBatch
from gear_rl.engines.trl.batch import rollout_batch
from gear_rl.engines.trl.solve import unnoticed
from gear_rl.engines.trl.trainer_type import Trainer


def sample(trainer: Trainer, rows: Sequence[Mapping[str, Any]], *, seed: int) -> RolloutBatch:
    """``num_generations`` rollouts of every row, tools, environments and rewards included.

    The same seed draws the same rollouts. The trainer's metrics and random state are left as they were. One
    process only.
    """
    each = int(trainer.num_generations)
    inputs = [dict(row) for row in rows for _ in range(each)]
    tries = trainer.num_generations_eval
    trainer.num_generations_eval = each
    try:
        with unnoticed(trainer):
            trainer.model.eval()  # in training it would assign credit
            torch.manual_seed(seed)
            return rollout_batch(trainer, inputs, trainer._generate_and_score_completions(inputs))
    finally:
        trainer.num_generations_eval = tries
