"""The machine under a run: its threads, settings that follow from it, and libraries that print too much."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import warnings
from typing import Any


def quiet_libraries() -> None:
    """Of the libraries under us show only what a user can act on."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def machine_defaults() -> dict[str, Any]:
    """Settings that follow from the machine, for keys that the user leaves alone.

    Without an accelerator TRL's defaults (bfloat16, gradient checkpointing, pinned memory) only cost time.
    """
    import torch

    if torch.accelerator.is_available():
        return {}
    return {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}


def use_few_threads() -> int:
    """One thread for tiny models, unless the user set OMP_NUM_THREADS: more threads only wait for each other."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return torch.get_num_threads()
