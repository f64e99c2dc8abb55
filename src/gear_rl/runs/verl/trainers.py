"""The two trainers, as verl knows them by name."""

import logging
from typing import Any

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gear_rl.engines.verl.checks import VerlSettings, check, environment_problem, version_note
from gear_rl.engines.verl.trainer import CreditTrainer
from gear_rl.errors import InputError
from gear_rl.runs.verl.settings import read_config

logger = logging.getLogger(__name__)


@register_trainer("gear_sync")
class GearSync(CreditTrainer, PPOTrainerSync):
    """verl's synchronous trainer with token credit."""

    mode = "sync"

    def __init__(self, config: Any) -> None:
        super().__init__(config, _checked(config))


@register_trainer("gear_colocate_async")
class GearColocateAsync(CreditTrainer, PPOTrainerColocateAsync):
    """verl's asynchronous trainer on shared devices, with token credit."""

    mode = "colocate_async"

    def __init__(self, config: Any) -> None:
        super().__init__(config, _checked(config))


def _checked(config: Any) -> VerlSettings:
    """The settings of a run, checked again: it may not have come through verl's command."""
    problem, note = environment_problem(), version_note()
    if problem is not None:
        raise InputError(problem)
    if note is not None:
        logger.warning("gear: %s", note)
    settings = read_config(config)
    check(config, settings)
    return settings
