"""``gear doctor --engine verl``: what a run under verl would miss on this machine, and how to correct it."""

import sys

from gear_rl.cli.doctor import Finding, device
from gear_rl.runs.verl.checks import TESTED, TRAINERS, environment_problem, installed, version_note
from gear_rl.runs.verl.registration import announcement_fault, registration_fault

_OWN = "make an environment of its own: pip install 'gear-rl[verl]'"
_REQUIRED = ("torch", "verl", "ray", "transferqueue", "tensordict", "transformers", "datasets", "hydra-core")
_SERVERS = ("vllm", "sglang")


def examine_verl() -> list[Finding]:
    """Every finding, cheap ones first; the last loads verl. Nothing is downloaded and nothing is changed."""
    python_ok = (3, 11) <= sys.version_info[:2] <= (3, 12)
    findings = [
        Finding(
            "ok" if python_ok else "broken",
            "python",
            ".".join(map(str, sys.version_info[:3])),
            "" if python_ok else "verl takes 3.11 and 3.12 of ours",
        ),
        *(_package(name) for name in _REQUIRED),
        _server(),
        _trl(),
    ]
    if installed("torch") is not None:
        findings += _platform()
    return [*findings, _registration()]


def _package(name: str) -> Finding:
    found = installed(name)
    if found is None:
        return Finding("broken", name, "not installed", _OWN)
    note = version_note() if name == "verl" else None
    if note is not None:
        return Finding("note", name, f"{found}: {note}", f"pip install 'verl=={TESTED[-1]}' was run")
    return Finding("ok", name, f"{found}, as tested" if name == "verl" else found)


def _server() -> Finding:
    found = [f"{name} {installed(name)}" for name in _SERVERS if installed(name) is not None]
    if found:
        return Finding("ok", "rollout server", ", ".join(found))
    return Finding(
        "broken", "rollout server", "neither vllm nor sglang is installed", "pip install vllm==0.31.0 on GPUs"
    )


def _trl() -> Finding:
    problem = environment_problem()
    if problem is None:
        return Finding("ok", "trl", "not in this environment, as it must be")
    fact, _, fix = problem.partition("; ")
    return Finding("broken", "trl", fact, fix)


def _platform() -> list[Finding]:
    import torch

    if torch.accelerator.is_available():
        return device()
    fix = "verl trains on accelerators; `make test-verl` runs it on a CPU, with files of the tests"
    return [Finding("note", "device", "no accelerator", fix)]


def _registration() -> Finding:
    """Whether a run would find our trainers; the one thing that verl does not say by itself."""
    subject = "registration"
    if installed("verl") is None:
        return Finding("broken", subject, "verl is not installed", _OWN)
    fault = announcement_fault()
    if fault is not None:
        return Finding("broken", subject, *fault)
    problem = registration_fault()
    if problem is not None:
        fix = "correct what it names, or report it; verl itself would only say: Unknown trainer"
        return Finding("broken", subject, problem, fix)
    return Finding("ok", subject, f"{', '.join(TRAINERS)}, the agent loop and the group gear")
