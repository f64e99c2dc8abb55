"""Importing the engine with a TRL that it cannot work with is one clear error."""

import subprocess
import sys

import pytest

MESSAGE = "trl 1.13.0 is not supported; install trl>=1.14,!=1.15.*,<1.17"
OLD = "import sys, trl; trl.__version__ = '1.13.0'; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", OLD + code], capture_output=True, text=True, check=False)


def test_the_import_names_the_release_to_install():
    done = run("import gear_rl; gear_rl.GEARTrainer")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {MESSAGE}"


@pytest.mark.parametrize("command", ["train", "demo"])
def test_the_command_says_it_in_one_line(command):
    done = run(f"sys.argv = ['gear', '{command}']; from gear_rl.cli import main; main()")
    assert done.returncode == 2
    assert done.stderr.strip() == f"gear: {MESSAGE}"
