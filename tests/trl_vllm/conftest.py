"""TRL with rollouts by vLLM, in the environment of `make test-vllm`; elsewhere nothing here is collected."""

import importlib.util

import pytest

IS_HERE = all(importlib.util.find_spec(name) for name in ("trl", "vllm"))
collect_ignore_glob = [] if IS_HERE else ["*.py"]


@pytest.fixture(scope="session", autouse=True)
def reused_engines():
    """Made once for each model."""
    from benchmarks.vllm_rollouts import one_engine

    with one_engine():
        yield


@pytest.fixture(scope="session")
def chain_server(tmp_path_factory: pytest.TempPathFactory):
    """A server of the chain's model."""
    from trl_vllm import runs
    from trl_vllm.server import serving

    folder = tmp_path_factory.mktemp("served")
    with serving(runs.save_model(folder / "model", "chain"), folder / "log.txt") as server:
        yield server
