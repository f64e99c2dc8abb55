"""tau2-bench by its own tool: ``tau2 run`` lets an agent and a user who is played by a model talk, and scores.

Numbers are those of its metrics, domain by domain.
"""

import json
import os
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.experiments.serving import Endpoint
from gear_rl.experiments.suites.inside import tau2_task
from gear_rl.experiments.suites.request import Outcome, Request, score
from gear_rl.experiments.tool_environments import ask, run_tool

DEFAULT_DOMAINS = ("airline", "retail", "telecom")
_TASK = Path(tau2_task.__file__)
_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Its client would fetch a table of prices."""


def evaluate_tau2(request: Request, endpoint: Endpoint, python: Path) -> Outcome:
    """The scores of the requested domains. Simulations that the folder has are not run again.

    ``InputError`` for a domain that is none or whose data are missing, and where the tool fails.
    """
    names, log = list(request.categories or DEFAULT_DOMAINS), request.folder / "tool.log"
    data = ask(python, _TASK, {"domains": names}, _QUIET)
    rows: list[dict[str, Any]] = []
    pass_hat: dict[str, dict[str, float]] = {}
    for name in names:
        run_tool(command(request, endpoint, python, name), log, variables(request), bare=True)
        found = ask(python, _TASK, {"file": str(request.folder / name / "results.json")}, _QUIET)
        if not found["tasks"]:
            raise InputError(
                f"--suite: no simulation of {name} came to its end ({found['errors']} failed); see {log}"
            )
        pass_hat[name] = found["pass_hat"]
        rows.append(
            score(name, "average reward", list(found["tasks"].values()), found["reward"], found["errors"])
        )
    about = {"data": data, "pass_hat": pass_hat, "user": request.user_model or "the model itself"}
    return Outcome(scores=rows, about=about, failures="simulations failed and are left out")


def check_tau2(request: Request) -> None:
    """``InputError`` for a user's endpoint without a model, and where the network was not granted.

    >>> check_tau2(Request(suite="tau2", folder=Path("out")))
    Traceback (most recent call last):
    gear_rl.errors.InputError: --suite: tau2 makes the calls that the model wrote ...
    """
    if request.user_endpoint is not None and request.user_model is None:
        raise InputError("--user-endpoint: say which model plays the user there, with --user-model NAME")
    if not request.network:
        raise InputError(
            "--suite: tau2 makes the calls that the model wrote (of its own tools, of which one evaluates "
            "arithmetic) in the process that asks the endpoint, so not without a network; run it in a container, "
            "and say --network"
        )


def command(request: Request, endpoint: Endpoint, python: Path, domain: str) -> list[str]:
    """The command line of the tool for one domain.

    No key stands in it: the tool writes its arguments into its results. Where nobody is named, the model plays
    its own user.
    """
    agent = {"api_base": endpoint.url, "temperature": request.temperature or 0.0}
    agent |= {} if request.max_tokens is None else {"max_tokens": request.max_tokens}
    user: dict[str, Any] = {"temperature": 0.0}
    name = request.user_model or f"openai/{endpoint.model}"
    if request.user_model is None:
        user["api_base"] = endpoint.url
    elif request.user_endpoint is not None:
        user["api_base"], name = request.user_endpoint.rstrip("/"), f"openai/{request.user_model}"
    choices = {
        "domain": domain,
        "agent-llm": f"openai/{endpoint.model}",
        "agent-llm-args": json.dumps(agent),
        "user-llm": name,
        "user-llm-args": json.dumps(user),
        "save-to": str(request.folder / domain),
        "max-concurrency": str(request.concurrency),
    }
    if request.limit is not None:
        choices["num-tasks"] = str(request.limit)
    for setting, value in request.settings.items():
        if setting in choices:
            raise InputError(f"--task-arg: {setting} is set by gear eval; leave it out")
        choices[setting] = value if isinstance(value, str) else json.dumps(value)
    words = [word for option, value in choices.items() for word in (f"--{option}", value)]
    return [str(python), "-I", "-m", "tau2.cli", "run", *words, "--auto-resume"]


def variables(request: Request) -> dict[str, str]:
    """What the tool's process knows of the environment: a key of the endpoint, and all keys for another user."""
    keys = {name: value for name, value in os.environ.items() if name.endswith("_API_KEY")}
    own = keys if request.user_model is not None else {}
    known = {name: os.environ[name] for name in ("TAU2_DATA_DIR",) if name in os.environ}
    return _QUIET | own | known | {"OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}
