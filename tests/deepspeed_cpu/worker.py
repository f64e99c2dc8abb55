"""One of two processes: train with GEAR where the weights are divided, resume, and write down what was seen.

`torchrun worker.py MODEL FOLDER HOW`, where HOW is `zero2`, `zero3` or `fsdp2`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from engines import running, tiny
from gear_rl import Gear

SETTINGS = {
    "max_steps": 3,
    "save_strategy": "steps",
    "save_steps": 1,
    "learning_rate": 5e-3,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "use_cpu": False,
    "teacher_model_kind": "base",
}
DEEPSPEED = {
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
}
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}


def settings_of(how: str, model: str) -> dict[str, Any]:
    if how == "fsdp2":  # where `base` is a copy of each process's shards, tested with DDP
        os.environ.update(FSDP2)
        return {"teacher_model": model, "teacher_model_kind": None}
    zero = {"stage": int(how[-1]), "stage3_param_persistence_threshold": 0}
    zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {"deepspeed": DEEPSPEED | {"zero_optimization": zero}}


def train(model: str, folder: Path, how: str, name: str, resume: str | None = None) -> None:
    more = SETTINGS | settings_of(how, model) | {"record_file": str(folder / f"{name}.jsonl")}
    trainer = running.trained(folder / "run", model, Gear(), rows=tiny.rows(12), resume=resume, **more)
    teacher = trainer.held_weights.teacher_model
    held = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in teacher.parameters())
    if trainer.accelerator.is_main_process:
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        seen = {"sharding": trainer.sharding, "held": held, "history": history}
        (folder / f"{name}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, folder, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    # Weights are divided on CPUs too, but accelerate does so on accelerators alone.
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_XPU)
    train(model, folder, how, "whole")
    AcceleratorState._reset_state(reset_partial_state=False)
    train(model, folder, how, "resumed", resume=str(folder / "run" / "checkpoint-2"))
