"""The two trainers, as verl knows them by name."""

import logging
from typing import Any

from omegaconf import open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gear_rl.engines.verl.trainer import CreditTrainer, TrainerCredit
from gear_rl.errors import InputError
from gear_rl.runs.verl.checks import check, environment_problem, version_note

logger = logging.getLogger(__name__)


class _Configured(CreditTrainer):
    """Reads its credit from verl's configuration, before anything is loaded."""

    def __init__(self, config: Any) -> None:
        problem = environment_problem()
        if problem is not None:
            raise InputError(problem)
        note = version_note()
        if note is not None:
            logger.warning("gear: %s", note)
        settings = check(config)
        self.credit = TrainerCredit(
            method=settings.method, config=settings.config, privileged=settings.privileged
        )
        with open_dict(config):
            super().__init__(config)


@register_trainer("gear_sync")
class GearSync(_Configured, PPOTrainerSync):
    """verl's synchronous trainer with token credit."""

    mode = "sync"


@register_trainer("gear_colocate_async")
class GearColocateAsync(_Configured, PPOTrainerColocateAsync):
    """verl's asynchronous trainer on shared devices, with token credit."""

    mode = "colocate_async"
