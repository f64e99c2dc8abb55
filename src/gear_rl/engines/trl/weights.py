"""The teacher's and the reference's own weights inside TRL's checkpoints."""

import os
from pathlib import Path

import safetensors.torch

from gear_rl.signals.teacher import Teacher

TEACHER_FILE, REFERENCE_FILE = "teacher.safetensors", "reference.safetensors"
"""Inside a checkpoint, where the teacher or the reference has weights of its own."""


def save_weights(folder: Path, teacher: Teacher | None, reference: Teacher | None, writes: bool) -> None:
    """Put what has to be saved into the checkpoint's folder, each file at once; every process must call this."""
    for name, weights in ((TEACHER_FILE, teacher), (REFERENCE_FILE, reference)):
        state = {} if weights is None else weights.state_dict()
        if state and writes:
            kept = {key: p.contiguous().cpu() for key, p in state.items()}
            safetensors.torch.save_file(kept, folder / f".{name}")
            os.replace(folder / f".{name}", folder / name)


def load_weights(checkpoint: str, teacher: Teacher, reference: Teacher) -> None:
    """Take up what the checkpoint has; ``ValueError`` that names it if it is another teacher's or model's."""
    for name, weights in ((TEACHER_FILE, teacher), (REFERENCE_FILE, reference)):
        file = Path(checkpoint) / name
        try:
            weights.load_state_dict(safetensors.torch.load_file(file) if file.exists() else {})
        except ValueError as error:
            fix = "" if name == TEACHER_FILE else f" ({name}: and with the credit that needs the reference)"
            raise ValueError(f"resume_from_checkpoint: {checkpoint}: {error}{fix}") from None
