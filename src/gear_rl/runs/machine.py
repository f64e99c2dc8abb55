"""The machine of a run: the settings and threads for it, and the libraries' output."""

import os
import warnings
from pathlib import Path
from typing import Any

FEW_CORES = 2
"""Cores up to which a pretrained model runs on one thread too: a second thread was only 25 % faster."""


def processor() -> dict[str, str]:
    """The facts in Linux's ``/proc/cpuinfo`` about the last core; empty on other systems."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def has_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16, which is slower than float32 otherwise."""
    facts = processor()
    flags = {*facts.get("flags", "").split(), *facts.get("Features", "").split()}
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def quiet_libraries() -> None:
    """Silence the output of libraries that a user cannot act on."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def machine_defaults(*, pretrained: bool = False, full: bool = True) -> dict[str, Any]:
    """Default settings for this machine; empty with an accelerator.

    On a CPU TRL's defaults (bfloat16, gradient checkpointing, pinned memory) only cost time. A ``pretrained``
    model uses bfloat16: as weights, or as autocast where all weights are trained (``full``), since small updates
    would be rounded away.
    """
    import torch

    if torch.accelerator.is_available():
        return {}
    half = pretrained and has_bfloat16()
    settings: dict[str, Any] = {"use_cpu": True, "bf16": half and full}
    settings |= {"gradient_checkpointing": False, "dataloader_pin_memory": False}
    return settings | ({"model_init_kwargs": {"dtype": "bfloat16"}} if half and not full else {})


def use_few_threads(pretrained: bool = False) -> int:
    """Use one thread, unless OMP_NUM_THREADS is set or a ``pretrained`` model has more than ``FEW_CORES`` cores;
    returns the number of threads."""
    import torch

    few = not pretrained or (os.cpu_count() or 1) <= FEW_CORES
    if few and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return torch.get_num_threads()
