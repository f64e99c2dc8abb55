"""What each of two processes does where FSDP 2 shards the weights: checkpoints, a resume, and the credit."""

import os
from pathlib import Path

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from engines import resuming


def resume(model: str, folder: Path) -> None:
    """As ``resuming.resume``, for each kind of checkpoint. What trains later in this process is sharded too."""
    os.environ |= {
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    }
    # torch shards on CPUs too, but accelerate on accelerators alone: several CPUs (MULTI_CPU) always get DDP.
    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_XPU)
    for kind, reshards in (("SHARDED_STATE_DICT", "true"), ("FULL_STATE_DICT", "false")):
        os.environ |= {"FSDP_STATE_DICT_TYPE": kind, "FSDP_RESHARD_AFTER_FORWARD": reshards}
        AcceleratorState._reset_state(reset_partial_state=True)
        (folder / kind).mkdir(exist_ok=True)
        resuming.resume(model, folder / kind / "resuming", use_cpu=False)
