"""The trainer's class as a type, for the modules that the trainer itself imports."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer as Trainer
else:
    Trainer = Any  # importing it would go round in a circle

__all__ = ["Trainer"]
