"""Real training with verl, in the environment of `make test-verl`; elsewhere nothing here is collected."""

import importlib.util
from pathlib import Path

import pytest

IS_HERE = importlib.util.find_spec("verl_on_cpu") is not None
collect_ignore = ["plugin", "vllm_name", "under_trl.py"]
collect_ignore_glob = [] if IS_HERE else ["*.py"]


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the chain's model and its problems, as verl reads them."""
    from verl_cpu import tasks

    return tasks.write(tmp_path_factory.mktemp("chain"), "chain", "default")


@pytest.fixture(scope="session")
def gear(chain: Path, tmp_path_factory: pytest.TempPathFactory):
    """Two steps with GEAR."""
    from verl_cpu import harness

    folder = tmp_path_factory.mktemp("gear")
    return harness.train(folder, chain, harness.SEEDED, *harness.GEAR, steps=2)
