"""The two trainers, as verl knows them by name."""

import logging
from typing import Any

from omegaconf import open_dict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gear_rl.engines.verl.trainer import CreditTrainer, TrainerCredit
from gear_rl.errors import InputError
from gear_rl.runs.verl.checks import check, environment_problem, reads_reference, version_note

logger = logging.getLogger(__name__)


class _Configured(CreditTrainer):
    """Reads its credit from verl's configuration, before anything is loaded."""

    mapping: dict[Any, Any]  # verl's

    def __init__(self, config: Any) -> None:
        problem = environment_problem()
        if problem is not None:
            raise InputError(problem)
        note = version_note()
        if note is not None:
            logger.warning("gear: %s", note)
        settings = check(config)
        self._reads_reference = reads_reference(config, settings)
        self.credit = TrainerCredit(
            method=settings.method, config=settings.config, privileged=settings.privileged
        )
        with open_dict(config):
            super().__init__(config)

    def _init_resource_pool_mgr(self) -> None:
        """Load verl's reference model where it is the teacher; verl itself loads it for a KL term alone."""
        super()._init_resource_pool_mgr()
        if not self._reads_reference or Role.ActorRollout not in self.role_worker_mapping:
            return
        print(
            "gear: loads verl's reference model, which is the teacher 'base'; gear.teacher=live does without"
        )
        for by_role in (self.role_worker_mapping, self.mapping):
            by_role[Role.ActorRolloutRef] = by_role.pop(Role.ActorRollout)
        ref = self.config.actor_rollout_ref.ref
        if ref.log_prob_micro_batch_size_per_gpu is None and ref.log_prob_micro_batch_size is None:
            # The worker asserts one, though nobody asks it for the log-probs of the reference.
            ref.log_prob_micro_batch_size_per_gpu = (
                self.config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
            )


@register_trainer("gear_sync")
class GearSync(_Configured, PPOTrainerSync):
    """verl's synchronous trainer with token credit."""

    mode = "sync"


@register_trainer("gear_colocate_async")
class GearColocateAsync(_Configured, PPOTrainerColocateAsync):
    """verl's asynchronous trainer on shared devices, with token credit."""

    mode = "colocate_async"
