"""Evaluation tools in environments of their own: made on demand, pinned, and run as separate processes.

Their pins disagree with each other and with training, so nothing of theirs is installed beside us.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.experiments.serving import last_lines
from gear_rl.runs.models import cache_folder

Say = Callable[[str], None]
_COMPLETE = "complete"
_ISOLATED = ("unshare", "--map-root-user", "--net", "--")
"""Linux: a network of its own, with nothing in it."""
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""What an isolated process gets to know of the user's environment: no token, no key, no home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A package that scores, and what its environment holds.

    >>> BFCL.package, BFCL.requirements.name
    ('bfcl-eval', 'bfcl.txt')
    """

    package: str
    version: str
    requirements: Path
    """Every package with its version: a list that is complete, so that nothing is resolved."""
    megabytes: int
    pythons: tuple[str, ...] = ()
    """The versions that it runs with, the best first; empty for the one that runs here."""
    source: tuple[str, str] | None = None
    """Repository and tag, of a tool that is in no package index."""


_LISTS = Path(__file__).parent / "suites"
BFCL = Tool(
    package="bfcl-eval",
    version="2026.3.23",
    requirements=_LISTS / "bfcl.txt",
    megabytes=560,
    pythons=("3.11", "3.12"),
)
INSPECT = Tool(package="inspect-evals", version="0.26.0", requirements=_LISTS / "inspect.txt", megabytes=750)
TAU2 = Tool(
    package="tau2",
    version="1.0.1",
    requirements=_LISTS / "tau2.txt",
    megabytes=450,
    pythons=("3.12", "3.13"),
    source=("https://github.com/sierra-research/tau2-bench", "v1.0.1"),
)
"""Its package of the index is another one, about magnets."""


def environment(tool: Tool, given: Path | None, say: Say) -> Path:
    """The Python of a tool's environment: the one ``given``, else one in the cache folder, made where it is not.

    A given one has to hold the package; which version it is, the report says. ``InputError`` where it does not,
    and where the packages cannot be installed. One that was left half made is made again.
    """
    if given is not None:
        python = _python(given)
        if not python.exists() or package_versions(python, [tool.package])[tool.package] is None:
            raise InputError(
                f"--env: {given} is no virtual environment with {tool.package}; leave it out to have one made"
            )
        return python
    folder = cache_folder() / "tools" / f"{tool.package}-{tool.version}"
    if not (folder / _COMPLETE).exists():
        say(f"making an environment for {tool.package} {tool.version}, once: {tool.megabytes} MB in {folder}")
        _make(tool, folder)
    return _python(folder)


def package_versions(python: Path, packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions in an environment; None for a package that is not there."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "def version(name):\n"
        "    try: return m.version(name)\n"
        "    except m.PackageNotFoundError: return None\n"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    return json.loads(subprocess.check_output([python, "-I", "-c", code, *packages], text=True))


def ask(
    python: Path, script: Path, request: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> Any:
    """What a script of ours prints as JSON in a tool's environment; ``InputError`` with its last line else."""
    command, known = [python, "-I", script, json.dumps(request)], os.environ | dict(variables or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=known)
    if done.returncode:
        raise InputError((done.stderr.strip().splitlines() or [f"{script.name} failed"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def can_isolate() -> bool:
    """Whether a process without a network can be started here: Linux with user namespaces, or root."""
    if shutil.which(_ISOLATED[0]) is None:
        return False
    return subprocess.run([*_ISOLATED, "true"], capture_output=True, check=False).returncode == 0


def run_tool(
    command: Sequence[str | Path],
    log: Path,
    variables: Mapping[str, str],
    *,
    isolated: bool = False,
    bare: bool = False,
    seconds: float | None = None,
) -> None:
    """Run a tool to its end, in the folder of its log; ``InputError`` if it fails or takes too long.

    ``bare``: with nothing of the user's environment but what ``variables`` add. ``isolated``: without a network
    besides. It sees the files of this machine all the same.
    """
    words = [str(word) for word in command]
    alone = {name: os.environ[name] for name in _KEPT if name in os.environ}
    known = alone if isolated or bare else dict(os.environ)
    with log.open("ab") as out:
        try:
            done = subprocess.run(
                [*_ISOLATED, *words] if isolated else words,
                cwd=log.parent, env=known | dict(variables), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(f"{words[0]} did not end within {seconds:.0f} s: {last_lines(log)}") from None
    if done.returncode:
        raise InputError(f"the tool failed: {last_lines(log)}")


def _python(folder: Path) -> Path:
    return folder.absolute() / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def interpreter(tool: Tool) -> str:
    """A Python that the tool runs with: this one, else one of the PATH; ``InputError`` where there is none."""
    if not tool.pythons or f"{sys.version_info.major}.{sys.version_info.minor}" in tool.pythons:
        return sys.executable
    found = [path for version in tool.pythons if (path := shutil.which(f"python{version}"))]
    if not found:
        raise InputError(
            f"--suite: {tool.package} runs with Python {' or '.join(tool.pythons)}, and there is no "
            f"python{tool.pythons[0]} on the PATH; install one, or name an environment that has it with --env"
        )
    return found[0]


def _make(tool: Tool, folder: Path) -> None:
    base = interpreter(tool)
    folder.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(_python(folder)), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    commands = [[base, "-m", "venv", "--clear", str(folder)], [*pip, "-r", str(tool.requirements)]]
    if tool.source is not None:
        # Its data are files of the repository, so that stays.
        (url, tag), clone = tool.source, str(folder / "source")
        commands += [["git", "clone", "-q", "--depth", "1", "--branch", tag, url, clone], [*pip, "-e", clone]]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise InputError(f"{tool.package} {tool.version} could not be installed: {error}") from None
        if done.returncode:
            said = " ".join((done.stderr.strip() or done.stdout.strip() or "failed").split())
            raise InputError(f"{tool.package} {tool.version} could not be installed: {said[-400:]}")
    (folder / _COMPLETE).touch()
