"""TRL as an engine: ``GEARTrainer`` and its settings."""

from gear_rl.engines.trl.config import GEARConfig
from gear_rl.engines.trl.trainer import GEARTrainer

__all__ = ["GEARConfig", "GEARTrainer"]
