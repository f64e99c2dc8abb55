"""One of two processes: train with checkpoints, resume in the middle of the rollouts, write down what came out."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer


def run(model: str, folder: Path, resume=None, **changes) -> GEARTrainer:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "num_iterations": 2}
    options |= {"learning_rate": 0.02, "record_file": str(folder / "records.jsonl")}
    settings = tiny.settings(folder, **options | changes)
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(12), credit=Gear())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: GEARTrainer) -> dict[str, torch.Tensor]:
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    return {name: p.detach().clone() for name, p in whole.items()}


def main(model: str, folder: Path, **changes) -> None:
    torch.set_num_threads(1)
    whole = run(model, folder / "run", **changes)
    rank = whole.accelerator.process_index
    save_file(weights(whole), folder / f"whole-{rank}.safetensors")
    # The newest is cut: the one before it is taken, in the middle of the rollouts.
    file = folder / "run" / "checkpoint-2" / f"rollouts-{rank}.pt"
    file.write_bytes(file.read_bytes()[:-1])
    whole.accelerator.wait_for_everyone()
    resumed = run(model, folder / "run", resume=True, **changes)
    save_file(weights(resumed), folder / f"resumed-{rank}.safetensors")
    refused = ""
    try:
        run(model, folder / "run", resume=True, **changes | {"beta": 0.1})
    except ValueError as error:
        refused = str(error)
    wrapped = type(whole.model_wrapped).__name__
    (folder / f"{rank}.json").write_text(json.dumps({"wrapped": wrapped, "refused": refused}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), **json.loads(sys.argv[3]))
