"""``gear doctor --engine verl``: what a run under verl would miss on this machine, and how to correct it."""

import importlib
import os
import traceback
import warnings
from importlib.metadata import entry_points

from gear_rl.cli.doctor import Finding, device
from gear_rl.engines.verl.batch import AGENT_NAME
from gear_rl.engines.verl.checks import TESTED, TRAINERS, check_environment, installed, version_note
from gear_rl.errors import InputError

_OWN = "make an environment of its own: pip install 'gear-rl[verl]'"
_REQUIRED = ("torch", "verl", "vllm", "ray", "transferqueue", "transformers", "datasets", "hydra-core")
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"


def examine_verl() -> list[Finding]:
    """Every finding, cheap ones first; the last loads verl. Nothing is downloaded and nothing is changed."""
    machine = device() if installed("torch") is not None else []
    return [*map(_package, _REQUIRED), _trl(), *machine, _registration()]


def _package(name: str) -> Finding:
    found = installed(name)
    if found is None:
        return Finding("broken", name, "not installed", _OWN)
    note = version_note() if name == "verl" else None
    if note is not None:
        return Finding("note", name, f"{found}: {note}", f"pip install 'verl=={TESTED}' was run")
    return Finding("ok", name, f"{found}, as tested" if name == "verl" else found)


def _trl() -> Finding:
    try:
        check_environment()
    except InputError as error:
        fact, _, fix = str(error).partition("; ")
        return Finding("broken", "trl", fact, fix)
    return Finding("ok", "trl", "not in this environment, as it must be")


def _registration() -> Finding:
    """Whether a run would find our trainers: verl hides whatever goes wrong in a plugin."""
    subject, policy = "registration", os.environ.get(_POLICY, "auto").strip().lower()
    if installed("verl") is None:
        return Finding("broken", subject, "verl is not installed", _OWN)
    if policy != "auto" and "gear" not in [name.strip() for name in policy.split(",")]:
        return Finding(
            "broken", subject, f"{_POLICY}={policy} leaves the plugin out", "unset it, or set it to gear"
        )
    problem = registration_fault()
    if problem is not None:
        fix = "correct what it names, or install gear-rl[verl] again; verl itself would only say: Unknown trainer"
        return Finding("broken", subject, problem, fix)
    return Finding("ok", subject, f"{', '.join(TRAINERS)}, the agent loop and the group gear")


def registration_fault() -> str | None:
    """What verl lacks of ours in this process, after loading the plugin as a run does; None if it has all.

    Loads verl and torch. An exception is given by the last line of its traceback.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # verl warns of every backend that is not installed
            for plugin in entry_points(group="verl.plugins", name="gear"):
                plugin.load()  # by ourselves first, since verl would hide its exception
            # The packages first, whose import is what the plugin waits for.
            for name in ("verl", "verl.trainer.ppo.v1", "verl.experimental.agent_loop"):
                importlib.import_module(name)
            trainers = importlib.import_module("verl.trainer.ppo.v1.trainer_base").TRAINER_REGISTRY
            loops = importlib.import_module("verl.experimental.agent_loop.agent_loop")._agent_loop_registry
            groups = importlib.import_module("hydra.core.config_store").ConfigStore.instance().repo
    except Exception as error:
        return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    missing = [f"trainer {name}" for name in TRAINERS if name not in trainers]
    missing += [] if AGENT_NAME in loops else [f"agent loop {AGENT_NAME}"]
    missing += [] if "gear" in groups else ["Hydra group gear"]
    return f"verl has no {', '.join(missing)}" if missing else None
