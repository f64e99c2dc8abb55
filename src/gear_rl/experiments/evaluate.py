"""A checkpoint behind an endpoint, a benchmark's own tool beside it, and one document of what it scored."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.experiments.serving import Endpoint, given_endpoint, served
from gear_rl.experiments.suites.bfcl import evaluate_bfcl
from gear_rl.experiments.suites.inspect_evals import evaluate_inspect
from gear_rl.experiments.suites.request import Outcome, Request
from gear_rl.experiments.suites.tau2 import check_tau2, evaluate_tau2
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
_ASKED = "asked.json"
"""What the files of a folder were asked for, where an evaluation can go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suite:
    tool: Tool
    run: Callable[[Request, Endpoint, Path], Outcome]
    choices: tuple[str, ...]
    """What can be chosen of it and not of every other."""
    check: Callable[[Request], None] = lambda request: None
    resumes: bool = False
    """Whether the tool goes on where it stopped; it would with any other model too."""


_OWN = {
    "bfcl": _Suite(tool=BFCL, run=evaluate_bfcl, choices=("categories", "tools")),
    "tau2": _Suite(
        tool=TAU2,
        run=evaluate_tau2,
        choices=("categories", "task-arg", "user-model", "user-endpoint"),
        check=check_tau2,
        resumes=True,
    ),
}
"""Suites with a tool of their own."""
_INSPECT = _Suite(tool=INSPECT, run=evaluate_inspect, choices=("data", "examples", "task-arg"))
"""Every other is a task of this one's."""


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
    suite = _OWN.get(request.suite, _INSPECT)
    python = environment(suite.tool, env, say)
    request.folder.mkdir(parents=True, exist_ok=True)
    if suite.resumes:
        replace_file(request.folder / _ASKED, json.dumps(_asked(request, model), indent=1).encode())
    if endpoint is not None:
        context: Any = nullcontext(given_endpoint(endpoint, model))
    else:
        say(f"serving {model} with {server}; its log is {request.folder / 'server.log'}")
        context = served(model, server, request.folder / "server.log", server_options)
    with context as where:
        say(f"{suite.tool.package} works; its log is {request.folder / 'tool.log'}")
        outcome = suite.run(request, where, python)
    document = {"suite": request.suite, "model": model, "scores": outcome.scores} | _how(request, where)
    document |= {
        "tool": package_versions(python, [suite.tool.package, "inspect-ai", "openai"])
    } | outcome.about
    document |= {"failures": outcome.failures, "command": command}
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
    suite = _OWN.get(request.suite, _INSPECT)
    for name, value in given.items():
        if value and name not in suite.choices:
            raise InputError(f"--{name}: {request.suite} has no such choice; leave it out")
    suite.check(request)
    if request.examples is not None and request.data is None:
        raise InputError("--examples: they belong to rows of a file; give those too, with --data FILE")
    for name, path in (("data", request.data), ("examples", request.examples)):
        if path is not None and not path.is_file():
            raise InputError(f"--{name}: {path} is no file; give one with a JSON object in every line")
    if request.folder.exists() and any(request.folder.iterdir()):
        _check_begun(request, model, suite)


def _check_begun(request: Request, model: str, suite: _Suite) -> None:
    """``InputError`` unless what the folder has was asked for in the same way and is not finished."""
    begun = request.folder / _ASKED
    if not suite.resumes or (request.folder / RESULT).exists() or not begun.is_file():
        raise InputError(f"--out: {request.folder} is not empty; name another folder, or delete it")
    before: dict[str, Any] = json.loads(begun.read_text(encoding="utf-8"))
    for name, value in _asked(request, model).items():
        if before.get(name) != value:
            raise InputError(
                f"--out: {request.folder} was begun with {name} {before.get(name)!r}, now it is {value!r}; "
                "ask for the same to go on, or name another folder"
            )


def _asked(request: Request, model: str) -> dict[str, Any]:
    """What answers depend on: those of another model, user or setting must not be taken for these."""
    own = ("suite", "user_model", "user_endpoint", "max_tokens", "temperature", "settings")
    return {"model": model} | {name: getattr(request, name) for name in own}


def _how(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    asked = ("limit", "max_tokens", "temperature", "concurrency")
    return {"server": endpoint.about} | {name: getattr(request, name) for name in asked}
