"""BFCL by its own tool: ``bfcl generate`` asks the endpoint, ``bfcl evaluate`` scores, both on the data it ships.

Numbers are those of its score files, category by category. No overall number: the tool's counts a category that
was not run as 0.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.experiments.serving import Endpoint
from gear_rl.experiments.suites.inside import bfcl_task
from gear_rl.experiments.suites.request import Outcome, Request, score
from gear_rl.experiments.tool_environments import ask, can_isolate, run_tool

DEFAULT_CATEGORIES = ("non_live",)
_TASK = Path(bfcl_task.__file__)
_EXECUTES = ("multi_turn", "memory", "web_search")
_EVALUATE_SECONDS = 1800
"""Scoring thousands of cases takes minutes; an expression of a model may take for ever."""


def evaluate_bfcl(request: Request, endpoint: Endpoint, python: Path) -> Outcome:
    """The scores of the requested categories.

    ``InputError`` for categories that are none or are not run here, where scoring cannot be isolated, and where
    the tool fails.
    """
    names = list(request.categories or DEFAULT_CATEGORIES)
    data = ask(python, _TASK, {"categories": names}, {"BFCL_PROJECT_ROOT": str(request.folder)})
    check_categories(data)
    if not request.network and not can_isolate():
        raise InputError(
            "--suite: bfcl's scorer evaluates expressions that the model wrote, and a process without a network "
            "cannot be started here (unshare); run it in a container, and say --network"
        )
    generate, evaluate = commands(request, endpoint, python, list(data))
    log, variables = request.folder / "tool.log", _variables(request, endpoint)
    run_tool(generate, log, variables)
    run_tool(evaluate, log, variables, isolated=not request.network, seconds=_EVALUATE_SECONDS)
    about = {"data": {f"BFCL_v4_{name}.json": digest for name, digest in data.items()}}
    about |= {"scored_without_network": not request.network, "tools": request.tools}
    return Outcome(scores=[read_score(request.folder, name) for name in data], about=about)


def check_categories(names: Iterable[str]) -> None:
    """``InputError`` for categories in which the tool runs what the model wrote while it still has the network.

    >>> check_categories(["simple_python"])
    >>> check_categories(["multi_turn_base"])
    Traceback (most recent call last):
    gear_rl.errors.InputError: --categories: multi_turn_base: bfcl runs calls ...
    """
    refused = [name for name in names if name.startswith(_EXECUTES)]
    if refused:
        raise InputError(
            f"--categories: {', '.join(refused)}: bfcl runs calls that the model wrote while it asks the "
            "endpoint, so not without a network; and web_search and memory need a search key or a model of the "
            "hub. Run the tool by hand, in a container"
        )
    if "format_sensitivity" in names:
        raise InputError("--categories: format_sensitivity is no score; leave it out")


def commands(
    request: Request, endpoint: Endpoint, python: Path, categories: list[str]
) -> tuple[list[str], list[str]]:
    """The command lines of the tool that generate and that evaluate."""
    asked = {
        "model": endpoint.model,
        "tools": request.tools,
        "max_tokens": request.max_tokens,
        "categories": categories,
        "limit": request.limit,
    }
    start = [str(python), "-I", str(_TASK), json.dumps(asked)]
    chosen = ["--test-category", ",".join(categories)]
    generate = ["generate", "--model", bfcl_task.NAME, "--num-threads", str(request.concurrency)]
    generate += chosen if request.limit is None else ["--run-ids"]
    if request.temperature is not None:
        generate += ["--temperature", str(request.temperature)]
    evaluate = ["evaluate", "--model", bfcl_task.NAME, *chosen]
    evaluate += [] if request.limit is None else ["--partial-eval"]
    return [*start, *generate], [*start, *evaluate]


def read_score(folder: Path, category: str) -> dict[str, Any]:
    """A row of the table, of the tool's files for one category; ``InputError`` where it wrote none."""
    found = [
        next((folder / part).rglob(f"BFCL_v4_{category}_{part}.json"), None) for part in ("score", "result")
    ]
    if None in found:
        raise InputError(f"--categories: bfcl wrote no score for {category}; see {folder / 'tool.log'}")
    header, results = (_lines(path) for path in found if path is not None)
    right, number = header[0]["correct_count"], header[0]["total_count"]
    values = [1.0] * right + [0.0] * (number - right)
    errors = sum("traceback" in result for result in results)
    return score(category, "accuracy", values, header[0]["accuracy"], errors)


def _variables(request: Request, endpoint: Endpoint) -> dict[str, str]:
    own = {"BFCL_PROJECT_ROOT": str(request.folder), "OPENAI_BASE_URL": endpoint.url}
    return own | {"OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
