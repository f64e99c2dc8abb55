"""Whether verl has our trainers, our agent loop and our group: what goes wrong in a plugin it hides."""

import importlib
import os
import traceback
import warnings
from importlib.metadata import EntryPoint, entry_points

from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.runs.verl.checks import TRAINERS

GROUP, NAME = "verl.plugins", "gear"
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"


def entry_point() -> EntryPoint | None:
    """Our plugin as the installed package announces it; None where it does not.

    >>> found = entry_point()
    >>> found is None or found.value == "gear_rl.runs.verl.plugin"
    True
    """
    return next((one for one in entry_points(group=GROUP) if one.name == NAME), None)


def announcement_fault() -> tuple[str, str] | None:
    """Why verl does not even try to load the plugin, and what to do; None if it does."""
    if entry_point() is None:
        return (
            f"the installed gear-rl announces no plugin of group {GROUP}",
            "install it again: pip install 'gear-rl[verl]'",
        )
    policy = os.environ.get(_POLICY, "auto").strip().lower()
    if policy != "auto" and NAME not in [name.strip() for name in policy.split(",")]:
        return f"{_POLICY}={policy} leaves the plugin out", f"unset it, or set it to {NAME}"
    return None


def registration_fault() -> str | None:
    """What is not registered in this process, after loading the plugin and verl as a run does; None if all is.

    Loads verl and torch. An exception is given by the last line of its traceback.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl warns of every backend that is not installed
        return _registration_fault()


def _registration_fault() -> str | None:
    plugin = entry_point()
    try:
        if plugin is not None:
            plugin.load()  # by ourselves first, since verl would hide its exception
        importlib.import_module("verl")
        trainers = importlib.import_module("verl.trainer.ppo.v1.trainer_base").TRAINER_REGISTRY
        # As the package, whose import is what the plugin waits for.
        importlib.import_module("verl.trainer.ppo.v1")
        importlib.import_module("verl.experimental.agent_loop")
        loops = importlib.import_module("verl.experimental.agent_loop.agent_loop")._agent_loop_registry
        store = importlib.import_module("hydra.core.config_store").ConfigStore.instance().repo
    except Exception as error:
        return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    missing = [f"trainer {name}" for name in TRAINERS if name not in trainers]
    missing += [] if AGENT_NAME in loops else [f"agent loop {AGENT_NAME}"]
    missing += [] if NAME in store else [f"Hydra group {NAME}"]
    return f"verl has no {', '.join(missing)}" if missing else None
