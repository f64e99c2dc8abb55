"""One thread, no network, no trackers: what every test of this suite relies on."""

import gc
import os
from importlib import import_module
from importlib.util import find_spec

# Before torch is imported anywhere: tiny models only wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(
    HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false"
)

import jaxtyping
import pytest
import torch
from hypothesis import settings

# What a checked module imports first is compiled anew with it, in every process, by jaxtyping's hook.
LIBRARIES = ("beartype", "datasets", "peft", "pydantic", "scipy.stats", "trl.trainer.grpo_trainer", "typer")
for library in LIBRARIES if find_spec("trl") else ():
    import_module(library)

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # no test may fail because a neighbour is busy
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Leave what the imports made out of later garbage collections: accelerate runs one around every training,
    half a second each over a million objects that stay anyway."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random Qwen3 of a few thousand weights and its tokenizer."""
    from engines import tiny

    return tiny.save(tmp_path_factory.mktemp("tiny-qwen3"))


@pytest.fixture
def unchecked():
    """As users have it: without the checks of shapes that the tests switch on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
