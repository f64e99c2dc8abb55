"""Hydra's group ``gear``: ``+gear=METHOD`` sets a method up, and has the configuration checked before Ray
starts."""

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback

from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.verl.checks import check, environment_problem
from gear_rl.runs.verl.settings import SECTION, group_of
from gear_rl.traits import distillation_of


class CheckConfiguration(Callback):
    """Hydra's callback: ends the command with one line for a configuration that cannot run.

    It ends it itself: of an exception in a callback Hydra makes a warning.
    """

    def on_job_start(self, config: Any, **options: Any) -> None:
        problem = environment_problem()
        try:
            check(config)
        except InputError as error:
            problem = problem or str(error)
        if problem is not None:
            raise SystemExit(f"gear-rl: {problem}")


def store_groups() -> None:
    """Put a group of every method that runs in verl into Hydra's store."""
    callback = {"_target_": f"{__name__}.{CheckConfiguration.__name__}"}
    for name, cls in METHODS.items():
        if distillation_of(cls()) is None:
            node = {
                SECTION: group_of(name),
                "algorithm": {"adv_estimator": "grpo"},
                "trainer": {"v1": {"trainer_mode": "gear_sync"}},
                "hydra": {"callbacks": {SECTION: callback}},
            }
            ConfigStore.instance().store(group=SECTION, name=name, node=node, package="_global_")
