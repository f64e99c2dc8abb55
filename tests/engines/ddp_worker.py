"""One of two processes: train with TRL's trainer, Uniform, Gear and Sdpg, and write down the results.
Then save and resume checkpoints, under DDP and where FSDP 2 shards the weights."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.distributed.tensor import DTensor

from engines import probing, running, tiny
from gear_rl import Gear, GEARTrainer, Uniform
from gear_rl.credit.siblings import credit_beside_siblings
from gear_rl.engines.trl.engine import TRLEngine
from gear_rl.methods import AgentOpsd, Cast, Opsd, Sdpg
from gear_rl.signals.passes import ModelPasses


def lopsided(completions, prompts, **kwargs):
    """Half of the groups have no spread, so the two processes score different numbers of completions."""
    flat = [int(prompt[0]["content"].split()[0]) % 2 == 0 for prompt in prompts]
    return [1.0 if same else value for same, value in zip(flat, tiny.vowels(completions), strict=True)]


def main(model: str, folder: Path) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # as in the tests' conftest: a collection around every training, over what the imports made
    rank = int(os.environ["RANK"])
    scored: list[int] = []
    original = ModelPasses.signals
    batches: list[int] = []

    def watched(passes, wanted, request, *more):
        scored.append(int(request.scored_B.sum()))
        batches.append(more[-1])
        return original(passes, wanted, request, *more)

    ModelPasses.signals = watched
    found, every = {}, tiny.rows()
    for name, credit, changes in (
        ("grpo", None, {}),
        ("uniform", Uniform(), {}),
        ("gear", Gear(), {}),
        ("sdpg", Sdpg(weight=0.5), {}),
        ("opsd", Opsd(), {}),
        ("cast", Cast(), {}),
        ("agent_opsd", AgentOpsd(), {}),
    ):
        records = {} if credit is None else {"record_file": str(folder / f"{name}.jsonl")}
        # Few rows have a context, so that one process may have nothing to distil while the other has.
        rows = [
            {**row, "privileged_context": None, "answer": ""} if i > 2 else row for i, row in enumerate(every)
        ]
        dataset = Dataset.from_list(rows) if name == "sdpg" else every
        changes |= {"rows": dataset, "reward": lopsided, "max_steps": 3, **records}
        trainer = running.trained(folder / name, model, credit, **changes)
        weights = trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict()
        torch.save(weights, folder / f"{name}-{rank}.pt")
        found[name] = {
            "wrapped": type(trainer.model_wrapped).__name__,
            "history": [h for h in trainer.state.log_history if "loss" in h],
            "scored": scored[-3:] if credit else [],
            "batches": batches[-3:] if credit else [],
        }

    def first_of_rank_0(completions, **kwargs):
        return [float(rank == 0 and i == 0) for i in range(len(completions))]

    # One group of sixteen over both processes: the only success is on the first.
    changes = {"num_generations": 16, "privileged_sources": ["sibling"], "max_steps": 1}
    changes |= {"record_file": str(folder / "sibling.jsonl"), "reward": first_of_rank_0}
    bare = tiny.rows().remove_columns(["privileged_context", "answer"])
    trainer = running.trained(folder / "sibling", model, Gear(), rows=bare, **changes)
    # Groups of four, of which the second is torn: each process has six completions, of other lengths.
    advantage_B, signals = probing.torn()
    own = slice(6 * rank, 6 * rank + 6)
    credits = {
        method.name: credit_beside_siblings(
            method, advantage_B[own], probing.part(signals, own), TRLEngine(trainer), 6 * rank
        ).advantage
        for method in probing.COMPARING
    }
    torch.save(credits, folder / f"credits-{rank}.pt")
    (folder / f"{rank}.json").write_text(json.dumps(found))
    resume(model, folder / "resuming")
    resume_sharded(model, folder / "sharded")


def trained(model: str, folder: Path, resume=None, **changes) -> GEARTrainer:
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "num_iterations": 2}
    options |= {"learning_rate": 0.02, "teacher_model_kind": "ema", "rows": tiny.rows(12)}
    return running.trained(folder, model, Gear(), resume=resume, **options | changes)


def resume(model: str, folder: Path, **changes) -> None:
    """Whole and resumed weights, and the refusal of another configuration, as files of this process."""
    whole = trained(model, folder, record_file=str(folder / "records.jsonl"), **changes)
    rank = whole.accelerator.process_index
    # The newest are cut, so the first is taken: in the middle of rollouts that are trained on twice. The next
    # ones are scored by the teacher that it holds.
    for step in (2, 3):
        file = folder / f"checkpoint-{step}" / f"rollouts-{rank}.pt"
        file.write_bytes(file.read_bytes()[:-1])
    whole.accelerator.wait_for_everyone()
    runs = {"whole": whole, "resumed": trained(model, folder, resume=True, **changes)}
    for name, trainer in runs.items():
        state = trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict()
        full = {key: x.full_tensor() if isinstance(x, DTensor) else x for key, x in state.items()}
        torch.save(full, folder.parent / f"{name}-{rank}.pt")
    refused = ""
    try:
        trained(model, folder, resume=True, beta=0.1, **changes)
    except ValueError as error:
        refused = str(error)
    (folder.parent / f"refused-{rank}.json").write_text(json.dumps(refused))


def resume_sharded(model: str, folder: Path) -> None:
    """What trains later in this process is sharded too."""
    os.environ |= {
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    }
    # torch shards on CPUs too, but accelerate on accelerators alone: several CPUs (MULTI_CPU) always get DDP.
    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_XPU)
    AcceleratorState._reset_state(reset_partial_state=True)
    folder.mkdir(exist_ok=True)
    resume(model, folder / "resuming", use_cpu=False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
