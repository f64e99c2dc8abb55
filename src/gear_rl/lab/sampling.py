"""Rollouts sampled through a TRL trainer outside of its training.

Tools, rewards, signals and credit are those of a training step. No weight changes. One process only.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from gear_rl.credit.own_loop import LocalEngine
from gear_rl.engines.trl import GEARTrainer
from gear_rl.engines.trl.evaluation import leave_no_trace
from gear_rl.engines.trl.rollouts import functions_of
from gear_rl.rollouts import RolloutBatch


def sample(trainer: GEARTrainer, rows: Sequence[Mapping[str, Any]], *, seed: int) -> RolloutBatch:
    """``num_generations`` rollouts of every row, as the credit step reads them; a seed draws the same again."""
    each = int(trainer.num_generations)
    inputs = [dict(row) for row in rows for _ in range(each)]
    tries, trainer.num_generations_eval = trainer.num_generations_eval, each
    try:
        with leave_no_trace(trainer):
            trainer.model.eval()  # in training it would assign credit
            torch.manual_seed(seed)
            return trainer.rollouts.batch(trainer, trainer._generate_and_score_completions(inputs))
    finally:
        trainer.num_generations_eval = tries


def sampled_engine(trainer: GEARTrainer) -> LocalEngine:
    """The engine that scores the rollouts just sampled, without the trainer; no weight was changed yet."""
    passes, tokenizer = trainer.credit_engine().passes, copy.copy(trainer._tokenizer)
    tokenizer.chat_template = trainer.chat_template or tokenizer.chat_template
    if getattr(trainer, "environment_factories", None) is not None:
        tools = [trainer._env_tools[name] for name in trainer._batch_environments]
    else:
        tools = [trainer.tools or functions_of(row.get("tools")) for row in trainer.rollouts.rows]
    return LocalEngine(
        passes.model,
        tokenizer,
        chat_template_kwargs=cast(dict[str, Any], trainer.chat_template_kwargs),
        temperature=passes.temperature,
        batch_size=passes.batch_size,
        teacher_model=passes.teacher_model,
        tools=tools,
    )
