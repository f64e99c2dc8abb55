"""Tasks of inspect-evals (gsm8k, math, aime2024, ...) by ``inspect eval``, on a hub's rows or a local file's.

Numbers are those of its log.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError, did_you_mean
from gear_rl.experiments.serving import Endpoint, last_lines
from gear_rl.experiments.suites.inside import inspect_about
from gear_rl.experiments.suites.request import Outcome, Request, score
from gear_rl.experiments.tool_environments import ask, run_tool

# Not imported: it needs the tool.
_TASK = Path(inspect_about.__file__).with_name("inspect_task.py")
_PROVIDER = "served"
"""The tool's word for an endpoint of OpenAI's kind; its variables begin with it."""


def evaluate_inspect(request: Request, endpoint: Endpoint, python: Path) -> Outcome:
    """The scores of a task.

    ``InputError`` for a task that is none, and where it fails: then also what it fetches from elsewhere, which
    ``data`` would take the place of.
    """
    task = ask(python, Path(inspect_about.__file__), {"suite": request.suite})
    if "names" in task:
        raise InputError(
            f"--suite: {request.suite!r} is none; {did_you_mean(request.suite, ['bfcl', *task['names']])}"
        )
    log, logs = request.folder / "tool.log", request.folder / "logs"
    try:
        run_tool(command(request, endpoint, python, task["folder"]), log, _variables())
        document = read_log(logs)
    except InputError as error:
        if request.data is None and task["assets"]:
            raise InputError(f"{hint(request.suite, task['assets'])} ({error})") from None
        raise
    if document["status"] != "success":
        fault: dict[str, Any] = document.get("error") or {}
        raise InputError(
            f"--suite: {request.suite} ended with {document['status']}: {fault.get('message') or last_lines(log)}"
        )
    about = {"task_version": document["eval"].get("metadata", {}).get("full_task_version")}
    about |= {
        "task_args": {k: v for k, v in document["eval"]["task_args"].items() if k in ("settings", "fewshot")}
    }
    if request.data is not None:
        about |= {"data": {request.data.name: hashlib.sha256(request.data.read_bytes()).hexdigest()}}
    else:
        about |= {"data": task["assets"], "samples_in_full": task["samples"]}
    return Outcome(scores=rows_of(document), about=about)


def command(request: Request, endpoint: Endpoint, python: Path, folder: str) -> list[str]:
    """The command line of ``inspect eval``: the task itself, or ours that gives it the rows of a file."""
    settings = dict(request.settings)
    if request.data is None:
        target, words = f"inspect_evals/{request.suite}", settings
    else:
        target, words = (
            f"{_TASK}@local",
            {"folder": folder, "suite": request.suite, "rows": str(request.data.absolute())},
        )
        words |= {"settings": settings} if settings else {}
        words |= {"examples": str(request.examples.absolute())} if request.examples else {}
    choices = {
        "--model": f"openai-api/{_PROVIDER}/{endpoint.model}",
        "--model-base-url": endpoint.url,
        "--log-dir": "logs",
        "--log-format": "json",
        "--display": "plain",
        "--max-connections": request.concurrency,
        "--limit": request.limit,
        "--max-tokens": request.max_tokens,
        "--temperature": request.temperature,
    }
    given = [str(word) for name, value in choices.items() if value is not None for word in (name, value)]
    own = [word for name, value in words.items() for word in ("-T", f"{name}={_yaml(value)}")]
    return [str(python), "-I", "-m", "inspect_ai", "eval", target, *given, *own]


def hint(suite: str, assets: list[str]) -> str:
    """What a task that failed may have missed, and how to bring it.

    >>> hint("aime2024", ["Maxwell-Jia/AIME_2024 (huggingface)"])
    '--suite: aime2024 needs Maxwell-Jia/AIME_2024 (huggingface): run it once where ..., or give rows ...'
    """
    return (
        f"--suite: {suite} needs {', '.join(assets)}: run it once where that is reached and bring its cache "
        "folder ($HF_HOME) here, or give rows of the same columns with --data FILE"
    )


def read_log(folder: Path) -> dict[str, Any]:
    """The tool's log of the one run in a folder; ``InputError`` where it wrote none."""
    found = sorted(folder.glob("*.json"))
    if not found:
        raise InputError(f"--suite: inspect wrote no log; see {folder.parent / 'tool.log'}")
    return json.loads(found[-1].read_text(encoding="utf-8"))


def rows_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every scorer of a log: its first metric, the values of its problems, each the mean of its epochs.

    A scorer whose values are no numbers has no interval of ours and is left out.
    """
    rows: list[dict[str, Any]] = []
    reductions: list[dict[str, Any]] = document.get("reductions") or []
    for scorer, reduced in zip(document["results"]["scores"], reductions, strict=False):
        values: list[Any] = [sample["value"] for sample in reduced["samples"]]
        metric: dict[str, Any] | None = next(iter(scorer["metrics"].values()), None)
        if metric is not None and all(isinstance(value, int | float) for value in values):
            rows.append(score(scorer["name"], metric["name"], list(map(float, values)), metric["value"]))
    return rows


def _variables() -> dict[str, str]:
    return {f"{_PROVIDER.upper()}_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
