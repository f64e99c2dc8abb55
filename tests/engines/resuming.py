"""What each of two processes does with checkpoints: save them, lose one, resume in the middle of the rollouts."""

import json
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer


def trained(model: str, folder: Path, resume=None, **changes) -> GEARTrainer:
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "num_iterations": 2}
    options |= {"learning_rate": 0.02, "teacher_model_kind": "ema"}
    settings = tiny.settings(folder, **options | changes)
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(12), credit=Gear())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def resume(model: str, folder: Path, **changes) -> None:
    """Whole and resumed weights, and what the refusal of another configuration says, as files of this process."""
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
        torch.save(
            {
                key: value.full_tensor() if isinstance(value, DTensor) else value
                for key, value in state.items()
            },
            folder.parent / f"{name}-{rank}.pt",
        )
    refused = ""
    try:
        trained(model, folder, resume=True, beta=0.1, **changes)
    except ValueError as error:
        refused = str(error)
    (folder.parent / f"refused-{rank}.json").write_text(json.dumps(refused))
