"""The command line without a new process: a second and a half of imports is paid once, not in every test."""

import io
import logging
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

GEAR, BENCHMARKS = typer.main.get_command(gear_app), typer.main.get_command(benchmarks_app)


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
    modules, log = set(sys.modules), logging.getLogger("gear_rl")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd or Path.cwd())
        patch.setattr(sys, "path", list(sys.path))
        kept = {"level": log.level, "propagate": log.propagate, "handlers": [*log.handlers]}
        for name, value in kept.items():
            patch.setattr(log, name, value)
        try:
            yield
        finally:
            for name in set(sys.modules) - modules:
                file = getattr(sys.modules[name], "__file__", None)
                own = name.partition(".")[0] == "gear_rl"  # twice it would have two catalogues of tasks
                if not own and cwd is not None and file is not None and Path(file).is_relative_to(cwd):
                    del sys.modules[name]  # the next test's module may bear the same name
