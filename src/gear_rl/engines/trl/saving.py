"""How TRL's trainer saves a checkpoint that is whole before it counts, and which one it resumes from.

Knows no file of a checkpoint: ``engines/checkpoints.py`` vouches for them, ``weights.py`` adds ours.
"""

import logging
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate.utils import broadcast_object_list

from gear_rl.engines.checkpoints import (
    UNFINISHED,
    BrokenCheckpointError,
    Manifest,
    checked,
    checkpoints_in,
    move_into_place,
    newest_whole,
    rotate,
    seal,
)
from gear_rl.engines.trl.fingerprint import configuration_of, differences
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.engines.trl.weights import save_progress, save_weights
from gear_rl.versions import versions

logger = logging.getLogger(__name__)
T = TypeVar("T")
_STATE = "trainer_state.json"


@dataclass
class Run:
    """The run under way, as its checkpoints name it."""

    id: str
    configuration: dict[str, Any]
    last_checkpoint: str | None = None
    same: bool = True
    """Whether the checkpoint that it resumed from was made with the same configuration."""


@contextmanager
def writing(trainer: Trainer) -> Generator[None]:
    """No other run writes the trainer's folder meanwhile; ``ValueError`` on every process if one does."""
    held = trainer.run_folder.held()
    on_main(trainer, held.__enter__)
    try:
        yield
    finally:
        if trainer.accelerator.is_main_process:
            held.__exit__(None, None, None)


def begin(trainer: Trainer, resume: str | bool | None) -> tuple[Run, str | None]:
    """The run that begins or goes on, and the checkpoint to resume from; ``ValueError`` for one that cannot be.

    True and "latest" mean the newest whole checkpoint of the run whose folder it is. Where a run begins, that
    folder has no checkpoints, or ``overwrite_output_dir`` deletes them. Records outside of it are never touched.
    """
    configuration = configuration_of(trainer)

    def choose() -> tuple[Run, str | None]:
        trainer.run_folder.check_records()
        if resume is None or resume is False:
            _make_room(trainer)
            return Run(trainer.run_folder.begin(), configuration), None
        path, manifest = _chosen(trainer, resume)
        run = _resumed(trainer, path, manifest, configuration)
        trainer.run_folder.begin(run.id)
        return run, str(path)

    return on_main(trainer, choose)


def _make_room(trainer: Trainer) -> None:
    """Refuse to begin where checkpoints are: those of the same steps would be replaced, and the others stay."""
    folder, overwrite = trainer.run_folder, trainer.args.overwrite_output_dir
    names = ", ".join(path.name for path in reversed(checkpoints_in(folder.path)))
    if names and not overwrite:
        raise ValueError(
            f"output_dir: {folder.path} holds a run already ({names}); go on with it by "
            "train(resume_from_checkpoint=True), delete it and begin anew by overwrite_output_dir=True, or give "
            "another output_dir"
        )
    if overwrite:
        folder.clear()
    else:
        folder.keep_old_records()


def _chosen(trainer: Trainer, resume: str | bool) -> tuple[Path, Manifest]:
    if resume is True or resume == "latest":
        return newest_whole(trainer.run_folder.path, trainer.run_folder.run)
    try:
        path = Path(str(resume))
        manifest = checked(path)
    except BrokenCheckpointError as broken:
        raise ValueError(
            f"resume_from_checkpoint: {resume} is no whole checkpoint: {broken}; name another, or take latest"
        ) from None
    folder = trainer.run_folder
    elsewhere = path.resolve().parent != folder.path.resolve()
    others = folder.leftovers() if elsewhere and folder.run != manifest.run else []
    if others:
        raise ValueError(
            f"output_dir: {folder.path} holds another run than {resume} ({', '.join(others)}); give another "
            "output_dir"
        )
    return path, manifest


def _resumed(trainer: Trainer, path: Path, manifest: Manifest, configuration: dict[str, Any]) -> Run:
    """The run of the checkpoint; a new one if it goes on with another configuration, which must be meant."""
    changed = differences(manifest.configuration, configuration)
    if changed and not trainer.args.resume_anyway:
        raise ValueError(
            f"resume_from_checkpoint: {path} was made with another configuration: {changed}; set it back, or set "
            "resume_anyway to go on from there as a new run"
        )
    if changed:
        logger.warning("resume_anyway: goes on as a new run: %s", changed)
    installed = versions()
    other = [f"{name} {old}" for name, old in manifest.versions.items() if installed.get(name) != old]
    if other:
        logger.warning("%s was made with %s: last bits may differ", path, ", ".join(other))
    logger.info("resume_from_checkpoint: %s", path)
    id = trainer.run_folder.begin() if changed else manifest.run
    return Run(id, configuration, last_checkpoint=str(path), same=not changed)


def save(trainer: Trainer, run: Run, own_save: Callable[[], None], trial: Any) -> None:
    """A checkpoint: written aside by ``own_save``, ours added, sealed, moved into place; then old ones go.

    Every process must call this. What fails leaves no checkpoint of this step, and the ones before untouched.
    """
    folder = Path(trainer._get_output_dir(trial))
    name = f"checkpoint-{trainer.state.global_step}"
    aside, final = folder / UNFINISHED / name, folder / name
    if trainer.args.should_save:
        shutil.rmtree(aside.parent, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    try:
        with _written_aside(trainer):
            own_save()
        save_weights(aside, trainer.teacher, trainer.reference, trainer.args.should_save)
        save_progress(aside, trainer)
        trainer.accelerator.wait_for_everyone()
        _name_the_best(trainer, aside, final)
        if trainer.args.should_save:
            resumable = not trainer.args.save_only_model
            step = trainer.state.global_step
            seal(aside, Manifest(run=run.id, step=step, configuration=run.configuration, resumable=resumable))
            move_into_place(aside, final)
            rotate(folder, run.id, trainer.args.save_total_limit, trainer.state.best_model_checkpoint)
    except BaseException:
        shutil.rmtree(aside.parent, ignore_errors=True)  # a full disk gets its room back
        raise
    trainer.accelerator.wait_for_everyone()
    run.last_checkpoint = str(final)
    if trainer.args.push_to_hub:
        trainer._push_from_checkpoint(str(final))


@contextmanager
def _written_aside(trainer: Trainer) -> Generator[None]:
    trainer.writes_aside = True
    try:
        yield
    finally:
        trainer.writes_aside = False


def _name_the_best(trainer: Trainer, aside: Path, final: Path) -> None:
    """The trainer's state names the best checkpoint by where it was written; it will not stay there."""
    state = trainer.state
    if state.best_model_checkpoint is not None and Path(state.best_model_checkpoint) == aside:
        state.best_model_checkpoint = str(final)
        if trainer.args.should_save:
            state.save_to_json(os.path.join(aside, _STATE))


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Let TRL's sampler stand where it stood after so many epochs: it draws one order of the rows for each."""
    if getattr(sampler, "shuffle", False):
        for _ in range(epochs):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


def on_main(trainer: Trainer, action: Callable[[], T]) -> T:
    """What ``action`` returns on the first process, on every process; what it raises, too."""
    outcome: list[Any] = [None, None]
    if trainer.accelerator.is_main_process:
        try:
            outcome[0] = action()
        except Exception as error:  # whatever it is: the other processes wait
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return cast(T, outcome[0])
