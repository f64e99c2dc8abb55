"""Real training with verl, in the environment of `make test-verl`; elsewhere nothing here is collected.

A run takes minutes, so each is made once and read by several tests.
"""

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
def errands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of errands, whose problems are solved by calling tools."""
    from verl_cpu import tasks

    return tasks.write(tmp_path_factory.mktemp("errands"), "errands", "easy")


@pytest.fixture(scope="session")
def stock(chain: Path, tmp_path_factory: pytest.TempPathFactory):
    """Two steps of verl's own trainer."""
    from verl_cpu import harness

    return harness.train(tmp_path_factory.mktemp("stock"), chain, harness.SEEDED, steps=2)


@pytest.fixture(scope="session")
def uniform(chain: Path, tmp_path_factory: pytest.TempPathFactory):
    """The same two steps of our trainer, with the method that changes nothing."""
    from verl_cpu import harness

    settings = [harness.SEEDED, "trainer.v1.trainer_mode=gear_sync", "+gear.credit=uniform"]
    settings.append("+gear.record_file=records.jsonl")
    folder = tmp_path_factory.mktemp("uniform")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "records.jsonl").write_text("a run before\n")
    return harness.train(folder, chain, *settings, steps=2)


@pytest.fixture(scope="session")
def gear(chain: Path, tmp_path_factory: pytest.TempPathFactory):
    """Two steps with GEAR."""
    from verl_cpu import harness

    folder = tmp_path_factory.mktemp("gear")
    return harness.train(folder, chain, harness.SEEDED, *harness.GEAR, steps=2)
