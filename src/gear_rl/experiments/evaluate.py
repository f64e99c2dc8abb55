"""A checkpoint behind an endpoint, a benchmark's own tool beside it, and one document of what it scored."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.experiments.serving import Endpoint, given_endpoint, served
from gear_rl.experiments.suites.bfcl import evaluate_bfcl
from gear_rl.experiments.suites.inspect_evals import evaluate_inspect
from gear_rl.experiments.suites.request import Outcome, Request
from gear_rl.experiments.suites.tau2 import check_resumed, check_tau2, evaluate_tau2, remember
from gear_rl.experiments.tool_environments import (
    BFCL,
    INSPECT,
    TAU2,
    Say,
    Tool,
    environment,
    package_versions,
)
from gear_rl.files import replace_file

RESULT = "eval.json"
_Run = Callable[[Request, Endpoint, Path], Outcome]
_OWN: dict[str, tuple[Tool, _Run]] = {"bfcl": (BFCL, evaluate_bfcl), "tau2": (TAU2, evaluate_tau2)}
"""Suites with a tool of their own; every other is a task of inspect-evals."""
_CHOICES = {
    "bfcl": ("categories", "tools"),
    "tau2": ("categories", "task-arg", "user-model", "user-endpoint"),
    "inspect": ("data", "examples", "task-arg"),
}
"""What can be chosen of one suite and not of every other."""


def evaluate(
    request: Request,
    model: str,
    *,
    endpoint: str | None = None,
    server: str = "transformers",
    server_options: tuple[str, ...] = (),
    env: Path | None = None,
    command: str = "",
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """What a suite's own tool scores of ``model``; also written as ``eval.json`` into the request's folder.

    ``model`` is served for as long as it takes, unless an ``endpoint`` has it. ``InputError`` for what is wrong,
    and before anything is installed or started where that can be known.
    """
    check(request, model)
    request = replace(request, folder=request.folder.absolute())
    tool, run = _OWN.get(request.suite, (INSPECT, evaluate_inspect))
    python = environment(tool, env, say)
    request.folder.mkdir(parents=True, exist_ok=True)
    if request.suite == "tau2":
        remember(request, model)
    if endpoint is not None:
        context: Any = nullcontext(given_endpoint(endpoint, model))
    else:
        say(f"serving {model} with {server}; its log is {request.folder / 'server.log'}")
        context = served(model, server, request.folder / "server.log", server_options)
    with context as where:
        say(f"{tool.package} works; its log is {request.folder / 'tool.log'}")
        outcome = run(request, where, python)
    document = {"suite": request.suite, "model": model, "scores": outcome.scores} | _how(request, where)
    document |= {"tool": package_versions(python, [tool.package, "inspect-ai", "openai"])} | outcome.about
    document |= {"command": command}
    replace_file(request.folder / RESULT, (json.dumps(document, indent=1) + "\n").encode())
    return document


def check(request: Request, model: str) -> None:
    """``InputError`` for what can be known to be wrong before anything is installed or started."""
    if request.suite in ("tau-bench", "tau2-bench"):
        raise InputError(f"--suite: {request.suite!r} is none; it is called tau2")
    for name, value in (
        ("limit", request.limit),
        ("max-tokens", request.max_tokens),
        ("concurrency", request.concurrency),
    ):
        if value is not None and value < 1:
            raise InputError(f"--{name}: {value}; give 1 or more")
    given = {
        "data": request.data,
        "examples": request.examples,
        "task-arg": request.settings,
        "categories": request.categories,
        "tools": request.tools,
        "user-model": request.user_model,
        "user-endpoint": request.user_endpoint,
    }
    known = _CHOICES[request.suite if request.suite in _OWN else "inspect"]
    for name, value in given.items():
        if value and name not in known:
            raise InputError(f"--{name}: {request.suite} has no such choice; leave it out")
    if request.suite == "tau2":
        check_tau2(request)
    if request.examples is not None and request.data is None:
        raise InputError("--examples: they belong to rows of a file; give those too, with --data FILE")
    for name, path in (("data", request.data), ("examples", request.examples)):
        if path is not None and not path.is_file():
            raise InputError(f"--{name}: {path} is no file; give one with a JSON object in every line")
    if request.folder.exists() and any(request.folder.iterdir()):
        if request.suite == "tau2" and not (request.folder / RESULT).exists():
            return check_resumed(request, model)
        raise InputError(f"--out: {request.folder} is not empty; name another folder, or delete it")


def _how(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    asked = ("limit", "max_tokens", "temperature", "concurrency")
    return {"server": endpoint.about} | {name: getattr(request, name) for name in asked}
