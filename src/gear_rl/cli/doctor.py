"""``gear doctor``: what this machine has, what will not work here, and how to correct it."""

import importlib
import os
import traceback
import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated, Literal, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from gear_rl.cli.console import out_console
from gear_rl.errors import InputError
from gear_rl.runs.machine import FEW_CORES, has_bfloat16, quiet_libraries
from gear_rl.runs.model_wheels import NAME, kept_folder
from gear_rl.versions import PACKAGES, versions

_TRL = ("torch", "jaxtyping", "trl", "transformers", "accelerate", "datasets")
_VERL = ("torch", "verl", "vllm", "ray", "transferqueue", "transformers", "datasets", "hydra-core")
_OWN = "make an environment of its own: pip install 'gear-rl[verl]'"
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"
_COLOURS = {"ok": "green", "note": "yellow", "broken": "red"}


class Finding(NamedTuple):
    """One fact about the machine; ``fix`` says what to do where it is not ``ok``."""

    state: Literal["ok", "note", "broken"]
    subject: str
    fact: str
    fix: str = ""


def doctor(
    engine: Annotated[str, typer.Option(help="For a run under trl or verl.")] = "trl",
) -> None:
    """Say what this machine has, what will not work here, and how to correct it.

    With --engine verl also whether verl has loaded our trainers: it hides what
    goes wrong in a plugin.
    """
    examinations = {"trl": examine, "verl": examine_verl}
    if engine not in examinations:
        raise InputError(f"--engine: {engine!r} is none; choose from {', '.join(examinations)}")
    findings = list(examinations[engine]())
    table = Table("", "what", "found", "what to do")
    for state, subject, fact, fix in findings:
        table.add_row(f"[{_COLOURS[state]}]{state}[/]", subject, escape(fact), escape(fix))
    out_console.print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """What a run under TRL needs of this machine, cheap checks first; downloads and changes nothing."""
    found = versions()
    yield Finding("ok", "python", found["python"])
    for package in PACKAGES:
        if package in found:
            yield Finding("ok", package, found[package])
        elif package in _TRL:
            yield Finding("broken", package, "not installed", "pip install 'gear-rl[trl]'")
        else:
            yield Finding("note", package, "not installed (optional)")
    if "torch" in found:
        yield from _device()
    if any(package not in found for package in _TRL):
        return
    try:
        importlib.import_module("gear_rl.engines.trl.config")
        yield Finding("ok", "TRL release", "its loss takes one advantage per token")
    except ImportError as error:
        yield Finding("broken", "TRL release", str(error), "install the TRL release that is named")
    try:
        quiet_libraries()
        model, _ = importlib.import_module("gear_rl.arena.model").load()
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        yield Finding("ok", "arena model", f"{millions:.2f}M parameters, loads")
    except (OSError, ValueError) as error:
        yield Finding("broken", "arena model", str(error), "reinstall gear-rl")
    folder = kept_folder()
    missing = Finding("note", NAME, "not fetched (optional)", f"gear model {NAME}")
    yield missing if folder is None else Finding("ok", NAME, str(folder))


def examine_verl() -> Iterator[Finding]:
    """What a run under verl needs of this machine, cheap checks first; the last one loads verl."""
    from gear_rl.engines.verl import checks

    for name in _VERL:
        found = checks.installed_version(name)
        if found is None:
            yield Finding("broken", name, "not installed", _OWN)
        elif name == "verl" and (note := checks.version_note()) is not None:
            yield Finding("note", name, f"{found}: {note}", f"pip install 'verl=={checks.TESTED}' was run")
        else:
            yield Finding("ok", name, f"{found}, as tested" if name == "verl" else found)
    try:
        checks.check_environment()
        yield Finding("ok", "trl", "not in this environment, as it must be")
    except InputError as error:
        fact, _, fix = str(error).partition("; ")
        yield Finding("broken", "trl", fact, fix)
    if checks.installed_version("torch") is not None:
        yield from _device()
    policy = os.environ.get(_POLICY, "auto").strip().lower()
    if checks.installed_version("verl") is None:
        yield Finding("broken", "registration", "verl is not installed", _OWN)
    elif policy != "auto" and "gear" not in [name.strip() for name in policy.split(",")]:
        fact = f"{_POLICY}={policy} leaves the plugin out"
        yield Finding("broken", "registration", fact, "unset it, or set it to gear")
    elif (problem := registration_fault()) is not None:
        fix = "correct what it names, or install gear-rl[verl] again; verl itself would only say: Unknown trainer"
        yield Finding("broken", "registration", problem, fix)
    else:
        fact = f"{', '.join(checks.TRAINERS)}, the agent loop and the group gear"
        yield Finding("ok", "registration", fact)


def _device() -> Iterator[Finding]:
    """The accelerators or the CPU, and the threads of torch."""
    import torch

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        yield Finding("ok", "device", f"{torch.cuda.device_count()} x {', '.join(sorted(names))}")
        if not torch.cuda.is_bf16_supported():
            yield Finding("note", "bfloat16", "not supported by this GPU", "set bf16: false")
    else:
        fix = (
            "fine for `gear demo`; a model of 135 million (`gear model smollm2`) is scored in minutes and trains "
            "32 rollouts in about a minute; larger ones need a GPU"
        )
        yield Finding("note", "device", f"CPU only, {os.cpu_count()} cores", fix)
        if has_bfloat16():
            yield Finding("ok", "bfloat16", "in the processor; pretrained models use it by default")
        else:
            fix = "pretrained models stay float32 by default; leave bf16 and dtype as they are"
            yield Finding("note", "bfloat16", "not reported by the processor: several times slower", fix)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        yield Finding("ok", "threads", f"OMP_NUM_THREADS={threads}")
    else:
        fix = f"the arena's models run on one by default, pretrained ones too up to {FEW_CORES} cores"
        yield Finding("note", "threads", f"{torch.get_num_threads()} by default", fix)


def registration_fault() -> str | None:
    """What verl lacks of ours in this process, after loading the plugin as a run does; None if it has all.

    Loads verl and torch. An exception is given by the last line of its traceback.
    """
    from gear_rl.engines.verl.checks import TRAINERS
    from gear_rl.engines.verl.rollouts import AGENT_NAME

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # verl warns of every backend that is not installed
            for plugin in entry_points(group="verl.plugins", name="gear"):
                plugin.load()  # first, since verl would hide its exception
            # The plugin registers when these packages are imported.
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
