"""``gear doctor``: what this machine has, what will not work here, and how to correct it."""

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from gear_rl.cli.console import out_console, user_errors
from gear_rl.errors import InputError
from gear_rl.runs.machine import FEW_CORES, has_bfloat16
from gear_rl.runs.models import KNOWN, kept_folder
from gear_rl.versions import PACKAGES, versions

_REQUIRED = ("torch", "jaxtyping", "trl", "transformers", "accelerate", "datasets")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine; ``fix`` says what to do where it is not ``ok``."""

    state: Literal["ok", "note", "broken"]
    subject: str
    fact: str
    fix: str = ""


@user_errors
def doctor(
    engine: Annotated[str, typer.Option(help="For a run under trl or verl.")] = "trl",
) -> None:
    """Say what this machine has, what will not work here, and how to correct it.

    With --engine verl also whether verl really has our trainers: it hides what goes wrong in a plugin.
    """
    from gear_rl.cli.doctor_verl import examine_verl

    examinations = {"trl": examine, "verl": examine_verl}
    if engine not in examinations:
        raise InputError(f"--engine: {engine!r} is none; choose from {', '.join(examinations)}")
    findings = examinations[engine]()
    table = Table("", "what", "found", "what to do")
    signs = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "broken": "[red]broken[/]"}
    for finding in findings:
        table.add_row(signs[finding.state], finding.subject, escape(finding.fact), escape(finding.fix))
    out_console.print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Every finding, cheap ones first; nothing is downloaded and nothing is changed."""
    installed = versions()
    python_ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    findings = [
        Finding(
            "ok" if python_ok else "broken",
            "python",
            installed["python"],
            "" if python_ok else "use 3.11 to 3.13",
        )
    ]
    for package in PACKAGES:
        if package in installed:
            findings.append(Finding("ok", package, installed[package]))
        elif package in _REQUIRED:
            findings.append(Finding("broken", package, "not installed", "pip install 'gear-rl[trl]'"))
        else:
            findings.append(Finding("note", package, "not installed (optional)"))
    if "torch" in installed:
        findings += device()
    if all(package in installed for package in _REQUIRED):
        findings += [*_hooks(), *_arena(), *_kept_models()]
    return findings


def device() -> list[Finding]:
    """The accelerators or the CPU, and the threads of torch."""
    import torch

    findings: list[Finding] = []
    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        findings.append(Finding("ok", "device", f"{torch.cuda.device_count()} x {', '.join(sorted(names))}"))
        if not torch.cuda.is_bf16_supported():
            findings.append(Finding("note", "bfloat16", "not supported by this GPU", "set bf16: false"))
    else:
        fix = (
            "fine for `gear demo`; a model of 135 million (`gear model smollm2`) is scored in minutes and trains "
            "32 rollouts in about a minute; larger ones need a GPU"
        )
        findings += [Finding("note", "device", f"CPU only, {os.cpu_count()} cores", fix), _bfloat16()]
    threads = os.environ.get("OMP_NUM_THREADS")
    text = f"OMP_NUM_THREADS={threads}" if threads else f"{torch.get_num_threads()} by default"
    fix = f"the arena's models run on one by themselves, pretrained ones too up to {FEW_CORES} cores"
    findings.append(Finding("ok" if threads else "note", "threads", text, "" if threads else fix))
    return findings


def _bfloat16() -> Finding:
    if has_bfloat16():
        return Finding("ok", "bfloat16", "in the processor; pretrained models use it by themselves")
    fix = "pretrained models stay float32 by themselves; leave bf16 and dtype as they are"
    return Finding("note", "bfloat16", "not in the processor, as far as it says: several times slower", fix)


def _hooks() -> list[Finding]:
    try:
        from gear_rl.engines.trl.config import incompatibilities
    except ImportError as error:
        return [Finding("broken", "TRL hooks", str(error), "install the TRL release that is named")]
    problems = incompatibilities()
    if problems:
        return [
            Finding("broken", "TRL hooks", problem, "install the TRL release that is named")
            for problem in problems
        ]
    return [Finding("ok", "TRL hooks", "all present; the loss takes one advantage per token")]


def _kept_models() -> list[Finding]:
    """The models that ``gear model`` fetches."""
    folders = {name: kept_folder(name) for name in KNOWN}
    return [
        Finding("ok", name, str(folder))
        if folder is not None
        else Finding("note", name, "not fetched (optional)", f"gear model {name}")
        for name, folder in folders.items()
    ]


def _arena() -> list[Finding]:
    from gear_rl.arena.model import load

    try:
        model, _ = load()
    except (OSError, ValueError) as error:
        return [Finding("broken", "arena model", str(error), "reinstall gear-rl")]
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    return [Finding("ok", "arena model", f"{millions:.2f}M parameters, loads")]
