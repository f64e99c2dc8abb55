"""The entry point of group ``verl.plugins``: verl imports this module in every process, at ``import verl``.

verl hides whatever goes wrong here, so little does: trainers and agent loop are registered when verl itself has
loaded what they extend, and a fault there is seen. ``gear doctor --engine verl`` says whether it happened.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

TRAINERS_IN, AGENTS_IN = "verl.trainer.ppo.v1", "verl.experimental.agent_loop"
"""The modules of verl with the registries."""


class _After(importlib.abc.MetaPathFinder):
    """Calls ``action`` once, when the module has been loaded; changes nothing of the module."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.action()

            loader.exec_module = exec_module
        return spec


def after_import(name: str, action: Callable[[], object]) -> None:
    """Call ``action`` as soon as module ``name`` is loaded: at once if it is.

    >>> after_import("sys", lambda: print("loaded"))
    loaded
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _After(name, action))


def _trainers() -> None:
    importlib.import_module("gear_rl.runs.verl.trainers")


def _agents() -> None:
    importlib.import_module("gear_rl.runs.verl.agents")


def register() -> None:
    """Register trainers, agent loop and Hydra's group, each as soon as verl can take it."""
    after_import(TRAINERS_IN, _trainers)
    after_import(AGENTS_IN, _agents)
    from gear_rl.runs.verl.groups import store_groups

    store_groups()


register()
