"""A checkpoint behind an OpenAI endpoint of this machine, for as long as something asks it.

The server is one that exists (``transformers serve``, vLLM), run as a child on 127.0.0.1. Knows no benchmark.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gear_rl.engines.models import is_adapter, save_merged
from gear_rl.errors import InputError
from gear_rl.runs.machine import FEW_CORES
from gear_rl.runs.models import resolve_model
from gear_rl.runs.trainer import is_arena
from gear_rl.runs.versions import has_bfloat16
from gear_rl.versions import versions

SERVERS = ("transformers", "vllm")
START_SECONDS = 900
"""A server that does not answer by then never will."""
_END_SECONDS = 30
_EXTRA = "pip install 'gear-rl[serve]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model answers, and by which name."""

    url: str
    """Up to and with ``/v1``."""
    model: str
    about: dict[str, Any]
    """What answers there, for the report; names no folder."""


def given_endpoint(url: str, model: str) -> Endpoint:
    """An endpoint that runs already; ``InputError`` where nothing answers, or it has no such model.

    A server that cannot list its models (an error in answer to ``/models``) is taken at the user's word.
    """
    url = url.rstrip("/")
    listed: dict[str, Any] = {}
    try:
        listed = json.loads(_get(f"{url}/models"))
    except urllib.error.HTTPError:
        pass
    except (OSError, ValueError) as error:
        raise InputError(f"--endpoint: {url}: no OpenAI endpoint answers there ({error})") from None
    names = [str(entry.get("id")) for entry in listed.get("data", ())]
    if names and model not in names:
        raise InputError(f"--model: {model!r} is none at {url}; it has {', '.join(names[:12])}")
    return Endpoint(url=url, model=model, about={"server": "given"})


@contextmanager
def served(
    model: str, server: str, log: Path, options: Sequence[str] = (), seconds: float = START_SECONDS
) -> Generator[Endpoint]:
    """The endpoint of a model that a child serves while the context is open; its output goes to ``log``.

    A folder with an adapter is merged into a temporary folder first. ``InputError`` for a server that is not
    installed, that ends or does not answer in time, and at the end for one that has died meanwhile.
    """
    if is_arena(model):
        raise InputError(f"--model: {model} solves the arena's tasks alone; see gear arena check")
    name = resolve_model(model, "--model")
    with contextlib.ExitStack() as stack:
        if is_adapter(name):
            name = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "merged")
            save_merged(resolve_model(model), Path(name))
        folder = Path(name).absolute() if Path(name).is_dir() else None
        shown = folder.name if folder else name
        port = _free_port()
        command = server_command(server, shown, port, options)
        child = _start(command, folder.parent if folder else None, log)
        try:
            _wait(child, f"http://127.0.0.1:{port}/health", server, log, seconds)
            about = {"server": server, "version": _version(server, port), "command": _public(command)}
            yield Endpoint(url=f"http://127.0.0.1:{port}/v1", model=shown, about=about)
            if child.poll() is not None:
                raise InputError(
                    f"--server: {server} died before the end, so scores mean nothing: {last_lines(log)}"
                )
        finally:
            _end(child)


def server_command(server: str, model: str, port: int, options: Sequence[str] = ()) -> list[str]:
    """The command line of a server; ``options`` stand last, so that they win.

    ``InputError`` for a server that is none, or that is not installed here.

    >>> server_command("vlm", "m", 8000)
    Traceback (most recent call last):
    gear_rl.errors.InputError: --server: 'vlm' is none; choose from transformers, vllm
    """
    if server not in SERVERS:
        raise InputError(f"--server: {server!r} is none; choose from {', '.join(SERVERS)}")
    common = [model, "--host", "127.0.0.1", "--port", str(port), "--dtype", _dtype(), *options]
    if server == "vllm":
        program = shutil.which("vllm")
        if program is None:
            raise InputError(
                "--server: there is no command vllm on the PATH; install vLLM (in an environment of its own, if "
                "need be), or take --server transformers"
            )
        return [program, "serve", *common]
    missing = [package for package in ("fastapi", "uvicorn", "openai") if find_spec(package) is None]
    if missing:
        raise InputError(f"--server: transformers serve needs {', '.join(missing)}; run: {_EXTRA}")
    # -P: what lies in the model's folder is no module.
    return [sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", *common]


def last_lines(log: Path, number: int = 3) -> str:
    """The end of a log in one line, for an error."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return f"{' / '.join(lines[-number:])[-400:]} (all of it: {log})"


def _version(server: str, port: int) -> str | None:
    """vLLM may live in another environment, and says itself which it is."""
    if server in versions():
        return versions()[server]
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(_get(f"http://127.0.0.1:{port}/version"))["version"])
    return None


def _public(command: Sequence[str]) -> str:
    """The command without the folder of its program."""
    words = [word for word in command if word != "-P"]
    return " ".join([Path(words[0]).name, *words[1:]])


def _get(url: str) -> bytes:
    """An answer of this machine or of a server that the user named; no proxy stands between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read()


def _dtype() -> str:
    """That of the weights, but float32 on a processor that multiplies in bfloat16 only by way of it."""
    import torch

    return "auto" if torch.accelerator.is_available() or has_bfloat16() else "float32"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _start(command: Sequence[str], folder: Path | None, log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that the server's own children end with it.

    It starts in the folder above the model's: by the model's bare name, no path gets into a tool's files.
    """
    variables = dict(os.environ)
    if (os.cpu_count() or 1) <= FEW_CORES:
        variables.setdefault("OMP_NUM_THREADS", "1")
    with log.open("wb") as out:
        return subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, env=variables,
        )  # fmt: skip


def _wait(child: subprocess.Popen[bytes], health: str, server: str, log: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):  # not there yet
            _get(health)
            return
        if child.poll() is not None:
            raise InputError(f"--server: {server} ended before it answered: {last_lines(log)}")
        if time.monotonic() > end:
            raise InputError(f"--server: {server} did not answer within {seconds:.0f} s: {last_lines(log)}")
        time.sleep(0.2)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the whole session to end, then end it; at once where somebody interrupts the waiting too."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
    finally:
        # Also what the server left behind: its children may outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
