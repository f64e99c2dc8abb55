"""What a checkpoint holds beside TRL's own files: the teacher's, the reference's and TRL's synced reference's
weights, and where each process stands in its rollouts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.signals.teacher import Teacher

TEACHER_FILE, REFERENCE_FILE = "teacher.safetensors", "reference.safetensors"
"""Inside a checkpoint, where the teacher or the reference has weights of its own."""
SYNCED_FILE = "synced_reference.safetensors"
"""TRL's reference model under ``sync_ref_model``: TRL itself would begin with the first weights again."""


def save_weights(folder: Path, teacher: Teacher | None, reference: Teacher | None, writes: bool) -> None:
    """Put what has to be saved into the checkpoint's folder; every process must call this."""
    for name, weights in ((TEACHER_FILE, teacher), (REFERENCE_FILE, reference)):
        _write(folder / name, {} if weights is None else weights.state_dict(), writes)


def load_weights(checkpoint: str, teacher: Teacher, reference: Teacher) -> None:
    """Take up what the checkpoint has; ``ValueError`` that names it if it is another teacher's or model's."""
    for name, weights in ((TEACHER_FILE, teacher), (REFERENCE_FILE, reference)):
        file = Path(checkpoint) / name
        try:
            weights.load_state_dict(safetensors.torch.load_file(file) if file.exists() else {})
        except ValueError as error:
            fix = "" if name == TEACHER_FILE else f" ({name}: and with the credit that needs the reference)"
            raise ValueError(f"resume_from_checkpoint: {checkpoint}: {error}{fix}") from None


def save_progress(folder: Path, trainer: Trainer) -> None:
    """What else the next step depends on; every process must call this.

    TRL trains on the same rollouts for ``steps_per_generation * num_iterations`` micro-batches. In the middle of
    them they are saved too: sampled anew, they would be others.
    """
    place = _micro_batch(trainer)
    rollouts = trainer._buffered_inputs if place else None
    torch.save({"micro_batches": trainer._step, "rollouts": rollouts}, _progress_file(folder, trainer))
    _write(folder / SYNCED_FILE, _synced(trainer), trainer.args.should_save)


def load_progress(checkpoint: str, trainer: Trainer) -> None:
    """Go on in the rollouts where the checkpoint stands; nothing where it was made by other processes."""
    synced, file = _synced(trainer), _progress_file(Path(checkpoint), trainer)
    if synced and (Path(checkpoint) / SYNCED_FILE).exists():
        for name, value in safetensors.torch.load_file(Path(checkpoint) / SYNCED_FILE).items():
            synced[name].copy_(value)
    if file.exists():
        device = trainer.accelerator.device
        place: Any = "cpu" if device.type == "cpu" else device  # torch.load does not know "cpu:0"
        state: dict[str, Any] = torch.load(file, map_location=place, weights_only=True)
        trainer._step, trainer._buffered_inputs = state["micro_batches"], state["rollouts"]


def _micro_batch(trainer: Trainer) -> int:
    """Which micro-batch of its rollouts comes next; 0 where the next step samples new ones."""
    return trainer._step % (cast(int, trainer.args.steps_per_generation) * int(trainer.num_iterations))


def _progress_file(folder: Path, trainer: Trainer) -> Path:
    return folder / f"rollouts-{trainer.accelerator.process_index}.pt"


def _synced(trainer: Trainer) -> dict[str, Tensor]:
    """The parameters that ``sync_ref_model`` moves; a tied one once."""
    if not trainer.args.sync_ref_model:
        return {}
    reference = trainer.accelerator.unwrap_model(cast(Any, trainer.ref_model))
    return {name: p.detach() for name, p in reference.named_parameters()}


def _write(file: Path, state: Mapping[str, Tensor], writes: bool) -> None:
    whole: dict[str, Tensor] = {}
    for name, p in state.items():
        # Every process gives its shard, and one keeps them: one parameter at a time, so that the device has room.
        value = p.full_tensor() if isinstance(p, DTensor) else p
        if writes:
            whole[name] = value.contiguous().cpu()
    if whole:
        safetensors.torch.save_file(whole, file)
