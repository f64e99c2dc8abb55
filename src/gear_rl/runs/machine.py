"""The machine under a run: its threads, settings that follow from it, and libraries that print too much."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

import os
import warnings
from typing import Any

from gear_rl.runs.versions import has_bfloat16


def quiet_libraries() -> None:
    """Of the libraries under us show only what a user can act on."""
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
    """Settings that follow from the machine, for keys that the user leaves alone.

    Without an accelerator TRL's defaults (bfloat16, gradient checkpointing, pinned memory) only cost time, for
    models as small as the arena's. A ``pretrained`` one gains two to three times from bfloat16, where the
    processor has it: as weights, unless they are all trained (``full``), for which small updates would be
    rounded away; then as autocast.
    """
    import torch

    if torch.accelerator.is_available():
        return {}
    half = pretrained and has_bfloat16()
    settings: dict[str, Any] = {"use_cpu": True, "bf16": half and full}
    settings |= {"gradient_checkpointing": False, "dataloader_pin_memory": False}
    return settings | ({"model_init_kwargs": {"dtype": "bfloat16"}} if half and not full else {})


FEW_CORES = 2
"""Cores up to which a pretrained model runs on one thread too: a second one, of the same core or a busy machine,
was measured to bring a quarter more for twice the time."""


def use_few_threads(pretrained: bool = False) -> int:
    """One thread for tiny models, unless the user set OMP_NUM_THREADS: more threads only wait for each other.

    A ``pretrained`` model keeps torch's threads where there are more than ``FEW_CORES``.
    """
    import torch

    few = not pretrained or (os.cpu_count() or 1) <= FEW_CORES
    if few and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return torch.get_num_threads()
