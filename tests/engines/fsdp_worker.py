"""One of two processes whose weights are sharded by FSDP 2, on a CPU: checkpoints, a resume, and the credit."""

import gc
import os
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from engines import resuming


def main(model: str, folder: Path) -> None:
    os.environ |= {
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    }
    # torch shards on CPUs too, but accelerate on accelerators alone: several CPUs (MULTI_CPU) always get DDP.
    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_XPU)
    torch.set_num_threads(1)
    gc.freeze()  # as in the tests' conftest
    for kind, reshards in (("SHARDED_STATE_DICT", "true"), ("FULL_STATE_DICT", "false")):
        os.environ |= {"FSDP_STATE_DICT_TYPE": kind, "FSDP_RESHARD_AFTER_FORWARD": reshards}
        AcceleratorState._reset_state()
        (folder / kind).mkdir(exist_ok=True)
        resuming.resume(model, folder / kind / "resuming", use_cpu=False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
