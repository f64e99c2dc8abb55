"""The two trainers, as verl knows them by name."""

import logging
from typing import Any

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gear_rl.engines.verl.checks import check, check_environment, version_note
from gear_rl.engines.verl.trainer import CreditTrainer
from gear_rl.runs.verl.settings import read_config

logger = logging.getLogger(__name__)


class _Checked(CreditTrainer):
    """Reads its settings and checks them again: a run may not have come through verl's command."""

    def __init__(self, config: Any) -> None:
        settings, note = read_config(config), version_note()
        check_environment()
        check(config, settings)
        if note is not None:
            logger.warning("gear: %s", note)
        super().__init__(config, settings)


@register_trainer("gear_sync")
class GearSync(_Checked, PPOTrainerSync):
    """verl's synchronous trainer with token credit."""

    mode = "sync"


@register_trainer("gear_colocate_async")
class GearColocateAsync(_Checked, PPOTrainerColocateAsync):
    """verl's asynchronous trainer on shared devices, with token credit."""

    mode = "colocate_async"
