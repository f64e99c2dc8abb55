"""Importing the engine with a TRL that it cannot work with is one clear error."""

import json
import subprocess
import sys

import pytest

MESSAGE = "trl 1.13.0 is not supported; install trl>=1.14,!=1.15.*,<1.17"
CODE = """
import io, json, sys, trl
from contextlib import redirect_stderr

trl.__version__ = "1.13.0"
import gear_rl
from gear_rl.cli import main

found = {}
try:
    gear_rl.GEARTrainer
except ImportError as error:
    found["import"] = repr(error)
for command in ("train", "demo"):
    sys.argv, told = ["gear", command], io.StringIO()
    try:
        with redirect_stderr(told):
            main()
    except SystemExit as end:
        found[command] = [end.code, told.getvalue()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    """What import and commands say in a process of its own, where TRL is an old one."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_import_names_the_release_to_install(found):
    assert found["import"] == f"ImportError({MESSAGE!r})"


@pytest.mark.parametrize("command", ["train", "demo"])
def test_the_command_says_it_in_one_line(command, found):
    code, told = found[command]
    assert (code, told.strip()) == (2, f"gear: {MESSAGE}")
