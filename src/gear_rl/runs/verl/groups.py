"""Hydra's group ``gear``: ``+gear=METHOD`` sets a method up. And the check of every run, before Ray starts."""

from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback

from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.verl.checks import assigns_credit, check, environment_problem
from gear_rl.runs.verl.settings import SECTION, group_of
from gear_rl.traits import distillation_of


class CheckConfiguration(Callback):
    """Hydra's callback: ends the command with one line for a run with token credit that cannot work.

    It ends it itself: of an exception in a callback Hydra makes a warning. What has neither a section ``gear``
    nor one of our trainers is no business of ours: verl's own runs, and other programs.
    """

    def on_job_start(self, config: Any, **options: Any) -> None:
        if not assigns_credit(config):
            return
        problem = environment_problem()
        try:
            check(config)
        except InputError as error:
            problem = problem or str(error)
        if problem is not None:
            raise SystemExit(f"gear-rl: {problem}")


def store_groups() -> None:
    """Put a group of every method that runs in verl into Hydra's store, and the check into Hydra's own settings.

    There, since a section that is written without the group would otherwise meet no code of ours before Ray runs,
    and none at all beside one of verl's trainers.
    """
    store = ConfigStore.instance()
    callback = {"_target_": f"{__name__}.{CheckConfiguration.__name__}"}
    store.store(group="hydra", name="config", node=HydraConf(callbacks={SECTION: callback}))
    for name, cls in METHODS.items():
        if distillation_of(cls()) is None:
            node = {
                SECTION: group_of(name),
                "algorithm": {"adv_estimator": "grpo"},
                "trainer": {"v1": {"trainer_mode": "gear_sync"}},
            }
            store.store(group=SECTION, name=name, node=node, package="_global_")
