"""The command line without a new process: a second and a half of imports is paid once, not in every test.

What only a process of its own can show (exit codes of the shell, the time to import) has tests with one.
"""

import io
import logging
import os
import sys
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.app import PROGRAM
from benchmarks.app import app as benchmarks_app
from gear_rl.cli.app import app as gear_app


def _command(app: typer.Typer) -> Any:
    """The command, with contexts of the class in the annotations, which the tests' type checker needs."""
    command: Any = typer.main.get_command(app)
    left = [command]
    while left:
        for sub in getattr(left.pop(), "commands", {}).values():
            sub.context_class = typer.Context
            left.append(sub)
    return command


GEAR, BENCHMARKS = _command(gear_app), _command(benchmarks_app)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def gear(*words: str, cwd: Path | None = None) -> Done:
    """``gear WORDS`` in the folder ``cwd``; an exception that nobody caught is raised here."""
    return _run(GEAR, "gear", words, cwd)


def benchmark(*words: str, cwd: Path | None = None) -> Done:
    """``python -m benchmarks WORDS`` in the folder ``cwd``; an exception that nobody caught is raised here."""
    return _run(BENCHMARKS, PROGRAM, words, cwd)


def _run(command: Any, program: str, words: tuple[str, ...], cwd: Path | None) -> Done:
    out, told, code = io.StringIO(), io.StringIO(), 0
    with untouched(cwd), redirect_stdout(out), redirect_stderr(told), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", [program, *words])
        try:
            command.main(list(words), prog_name=program)
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), told.getvalue())


@contextmanager
def untouched(cwd: Path | None):
    """Folder, module path, the user's modules, our log and the warnings are as before afterwards."""
    folder, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    log = logging.getLogger("gear_rl")
    before = log.level, list(log.handlers), log.propagate
    try:
        with warnings.catch_warnings():
            if cwd is not None:
                os.chdir(cwd)
            yield
    finally:
        os.chdir(folder)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.partition(".")[0] == "gear_rl":
                continue  # loaded twice it would have two catalogues of tasks
            file = getattr(sys.modules[name], "__file__", None)
            if cwd is not None and file is not None and Path(file).is_relative_to(cwd):
                del sys.modules[name]  # the next test's module may bear the same name
        log.level, log.propagate = before[0], before[2]
        log.handlers[:] = before[1]
