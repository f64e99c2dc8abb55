"""Rollouts by vLLM in the process of TRL's trainer, on a CPU. Knows no method.

Needs the environment of ``make test-vllm``, and the environment variables before vLLM is imported.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

from gear_rl.runs.arena import arena_config
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.trl_run import make_trainer
from gear_rl.versions import versions

SETTINGS = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.2,
    "vllm_max_model_length": 640,
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would tie itself to cores that others need as well
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in TRL's process, as "colocate" means
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def with_vllm(configured: Callable[..., RunConfig], *given: Any, **more: Any) -> RunConfig:
    """The run that ``configured`` makes, sampled by vLLM."""
    run = configured(*given, **more)
    run.trainer = SETTINGS | run.trainer
    return run


def learning_curves(
    methods: Sequence[str], seeds: int, steps: int, say: Callable[[str], object]
) -> dict[str, Any]:
    """The mean reward of each step of ``chain`` by method, generation and seed, and the mean of the last ten."""
    curves: dict[str, dict[str, list[list[float]]]] = {}
    quiet = {"report_to": "none", "save_strategy": "no", "record_file": None}
    with one_engine():
        for method in methods:
            for generation, settings in (("vLLM", SETTINGS), ("transformers", {})):
                for seed in range(seeds):
                    say(f"{method}, {generation}, seed {seed}")
                    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ):
                        run = arena_config(
                            "chain",
                            "default",
                            method,
                            seed=seed,
                            steps=steps,
                            output_dir=folder,
                            **quiet,
                            **settings,
                        )
                        trainer = make_trainer(run)
                        trainer.train()
                    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
                    curves.setdefault(method, {}).setdefault(generation, []).append(rewards)
    ends = {
        method: {name: [round(sum(one[-10:]) / 10, 4) for one in every] for name, every in own.items()}
        for method, own in curves.items()
    }
    return {
        "what": "mean reward of each training step on chain/default, and of the last ten",
        "ends": ends,
        "curves": curves,
        "versions": versions(),
    }


@contextmanager
def one_engine() -> Iterator[None]:
    """An engine for each model, which every trainer loads its weights into anew: making one takes half a minute.

    vLLM's CPU build packs linear weights and throws the originals away, so that no weight could be loaded again;
    this is its own switch against it.
    """
    os.environ.update(ENVIRONMENT)
    vllm_generation: Any = import_module("trl.generation.vllm_generation")
    from vllm.model_executor.layers.linear import LinearBase  # pyright: ignore[reportMissingImports]

    LinearBase._cpu_skip_gemm_dispatch = True
    with patch.object(vllm_generation, "LLM", cache(vllm_generation.LLM)):
        yield
