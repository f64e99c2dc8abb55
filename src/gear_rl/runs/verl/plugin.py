"""The entry point in the group ``verl.plugins``: verl imports this module in every process, at ``import verl``.

Trainers and the agent loop are registered later, once verl has loaded the classes that they extend. verl hides
errors of a plugin; ``gear doctor --engine verl`` shows them.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback

from gear_rl.engines.verl.checks import TRAINERS, check, check_environment, select
from gear_rl.errors import InputError
from gear_rl.methods import METHODS
from gear_rl.runs.verl.hydra_settings import SECTION, group_of, read_config

REGISTERED = {
    "verl.trainer.ppo.v1": "gear_rl.runs.verl.credit_trainer",
    "verl.experimental.agent_loop": "gear_rl.runs.verl.agent_loop",
}
"""Modules of verl with a registry, and our modules that register there."""


class CheckConfiguration(Callback):
    """Hydra's callback: ends the command with one line for a run with token credit that cannot train."""

    def on_job_start(self, config: Any, **options: Any) -> None:
        mode = select(config, "trainer.v1.trainer_mode")
        if select(config, SECTION) is None and mode not in TRAINERS:
            return
        try:
            check_environment()
            check(config, read_config(config))
        except InputError as error:
            raise SystemExit(f"gear-rl: {error}") from None  # Hydra turns other exceptions into warnings


def store_groups() -> None:
    """Add a group ``gear`` with every method to Hydra's store, and the check as a callback."""
    # Without the group, no other code of ours runs before Ray does, and none at all with verl's own trainers.
    store = ConfigStore.instance()
    callback = {"_target_": f"{__name__}.{CheckConfiguration.__name__}"}
    store.store(group="hydra", name="config", node=HydraConf(callbacks={SECTION: callback}))
    for name in METHODS:
        node = {
            SECTION: group_of(name),
            "algorithm": {"adv_estimator": "grpo"},
            "trainer": {"v1": {"trainer_mode": TRAINERS[0]}},
        }
        store.store(group=SECTION, name=name, node=node, package="_global_")


class _After(importlib.abc.MetaPathFinder):
    """Calls ``act`` once the module ``name`` has run."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self.name, self.act = name, act

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self.act()

        spec.loader.exec_module = exec_module
        return spec


def after_import(name: str, act: Callable[[], object]) -> None:
    """Call ``act`` right after the module ``name`` is imported; at once if it is already."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _After(name, act))


for _name, _ours in REGISTERED.items():
    after_import(_name, partial(importlib.import_module, _ours))
store_groups()
