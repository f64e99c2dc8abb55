"""TRL with rollouts by vLLM, in the environment of `make test-vllm`; elsewhere nothing here is collected."""

import importlib.util
import os
from functools import cache

import pytest

IS_HERE = all(importlib.util.find_spec(name) for name in ("trl", "vllm"))
collect_ignore_glob = [] if IS_HERE else ["*.py"]
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",  # vLLM would tie itself to cores that others need as well
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # in TRL's process, as "colocate" means
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
)


@pytest.fixture(scope="session", autouse=True)
def reused_engines():
    """An engine for each model, which every trainer loads its weights into anew: making one takes half a minute.

    vLLM's CPU build packs linear weights and throws the originals away, so that no weight could be loaded again;
    this is its own switch against it.
    """
    from trl.generation import vllm_generation
    from vllm.model_executor.layers.linear import LinearBase

    LinearBase._cpu_skip_gemm_dispatch = True
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vllm_generation, "LLM", cache(vllm_generation.LLM))
        yield


@pytest.fixture(scope="session")
def chain_server(tmp_path_factory: pytest.TempPathFactory):
    """A server of the chain's model."""
    from trl_vllm import runs
    from trl_vllm.server import serving

    folder = tmp_path_factory.mktemp("served")
    with serving(runs.save_model(folder / "model", "chain"), folder / "log.txt") as server:
        yield server
