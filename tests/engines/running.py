"""Trainers of the tiny model, and what a training has left."""

from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from engines import tiny
from gear_rl import GEARConfig, GEARTrainer
from gear_rl.engines.trl.durable import DurableTrainer

Weights = dict[str, torch.Tensor]
SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "learning_rate": 0.02}
"""Every step is saved, and weights move by much."""


def trainer_of(
    folder: Path,
    model: Any,
    credit: Any,
    *,
    rows: Any = None,
    reward: Any = tiny.vowels,
    peft: Any = None,
    cls: type[GRPOTrainer] = GEARTrainer,
    **changes: Any,
) -> Any:
    """A trainer with the settings of ``tiny``, changed; without credit TRL's own, or a durable one."""
    settings, rows = tiny.settings(folder, **changes), tiny.rows() if rows is None else rows
    if credit is None and cls is DurableTrainer:
        return DurableTrainer(model, reward, GEARConfig(**settings), rows, peft_config=peft)
    if credit is None:
        return GRPOTrainer(model, reward, GRPOConfig(**settings), rows)
    return cls(model, reward, GEARConfig(**settings), rows, peft_config=peft, credit=credit)


def trained(folder: Path, model: Any, credit: Any, *, resume: Any = None, **changes: Any) -> Any:
    """The trainer after its training."""
    trainer = trainer_of(folder, model, credit, **changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def trained_and_saved(
    folder: Path, model: Any, resume: Any = None, *, credit: Any = None, **changes: Any
) -> Any:
    """The trainer after a training of which every step is saved; six rows are three steps of an epoch."""
    return trained(folder, model, credit, rows=tiny.rows(6), resume=resume, **SAVING | changes)


def weights(trainer: Any) -> Weights:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def history(trainer: Any, key: str) -> list[float]:
    """What the trainer has logged as ``key``."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]
