"""The checkpoints of a run under TRL: whole before they count, and which one a run resumes from."""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import safetensors.torch
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.trainer_callback import TrainerState

from gear_rl.engines.folder import UNFINISHED, RunFolder, checkpoints_in
from gear_rl.engines.trl.config import GEARConfig
from gear_rl.files import replace_file
from gear_rl.versions import versions

logger = logging.getLogger(__name__)
T = TypeVar("T")

MANIFEST = "manifest.json"


class BrokenCheckpointError(ValueError):
    """Why a folder is no whole checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The run that a checkpoint belongs to. It is written last, so the folder is whole where it is."""

    run: str
    """The same for a run that was resumed."""
    configuration: dict[str, Any]
    """The settings of the run, as JSON has them."""
    resumable: bool = True
    """False where only the model was saved."""
    versions: dict[str, str] = field(default_factory=versions)
    files: dict[str, int]
    """Bytes by path inside the folder."""


def seal(folder: Path, **facts: Any) -> None:
    """Write the manifest of the folder's files, after all of them have reached the disk."""
    sizes: dict[str, int] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = os.fstat(file.fileno()).st_size
    manifest = asdict(Manifest(files=sizes, **facts))
    replace_file(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest:
    """The folder's manifest; its files are not looked at."""
    try:
        return Manifest(**json.loads((folder / MANIFEST).read_bytes()))
    except OSError:
        raise BrokenCheckpointError(f"it has no {MANIFEST}, so it was never finished") from None
    except (ValueError, TypeError):
        raise BrokenCheckpointError(f"its {MANIFEST} is not what this version writes") from None


def check_checkpoint(folder: Path) -> Manifest:
    """The manifest of a whole checkpoint; ``BrokenCheckpointError`` with the first thing that is wrong."""
    manifest = read_manifest(folder)
    if not manifest.resumable:
        raise BrokenCheckpointError(
            "it was saved with save_only_model, so the optimizer's state is not in it"
        )
    for name, size in manifest.files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise BrokenCheckpointError(f"{name} is missing or cut")
    return manifest


def newest_whole(folder: Path, run: str | None) -> tuple[Path, Manifest]:
    """The newest checkpoint of ``run`` (None: of any) that holds; ``ValueError`` says why the others do not."""
    passed: list[str] = []
    for path in checkpoints_in(folder):
        try:
            if run is not None and read_manifest(path).run != run:
                raise BrokenCheckpointError("it is of another run")
            return path, check_checkpoint(path)
        except BrokenCheckpointError as broken:
            passed.append(f"{path.name}: {broken}")
            logger.warning("resume_from_checkpoint: %s is passed over: %s", path, broken)
    why = f" ({'; '.join(passed)})" if passed else ""
    raise ValueError(f"resume_from_checkpoint: {folder} holds no whole checkpoint of this run{why}")


def move_into_place(unfinished: Path, final: Path) -> None:
    """Rename a sealed checkpoint; one of the same step that was there before is deleted."""
    if final.exists():
        final.rename(unfinished.parent / f"former-{final.name}")
    unfinished.rename(final)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(final.parent, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    shutil.rmtree(unfinished.parent)


def rotate(folder: Path, run: str, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints of ``run`` beyond ``keep``, but never the newest nor the ``best``.

    The function of transformers counts another run's too, and a user's copy such as ``checkpoint-20-keep``.
    """
    own = [path for path in checkpoints_in(folder) if _is_of(path, run)]
    protected = {path for path in own[1:] if best is not None and path.resolve() == Path(best).resolve()}
    old = [path for path in own[1:] if path not in protected]
    for path in old[max(0, keep - 1 - len(protected)) :] if keep else ():
        shutil.rmtree(path, ignore_errors=True)


def _is_of(path: Path, run: str) -> bool:
    try:
        return read_manifest(path).run == run
    except BrokenCheckpointError:
        return False


_MAY_CHANGE = """
    output_dir run_name project report_to disable_tqdm push_to_hub hub_ trackio_ log save_ eval_ do_ record_ debug
    load_best_model_at_end metric_for_best_model greater_is_better per_device_eval_batch_size num_generations_eval
    num_completions_to_print max_steps num_train_epochs non_finite_step credit_batch_size gradient_checkpointing
    activation_checkpointing torch_empty_cache_steps dataloader_num_workers dataloader_p local_rank ddp_
    teacher_url_ vllm_server_ vllm_group_port vllm_gpu_memory_utilization vllm_enable_sleep_mode
"""
MAY_CHANGE = tuple(_MAY_CHANGE.split())
"""How settings of a run's length, logs and memory begin, which do not change what it learns."""
ABOUT_RESUMING = ("resume_from_checkpoint", "resume_anyway", "overwrite_output_dir")


def fingerprint(args: GEARConfig, dataset: Any, rewards: Sequence[str], model: Any) -> dict[str, Any]:
    """What a resumed run is compared by: its settings, data, rewards and model.

    ``rewards`` are the names of the reward functions. The model is compared by type and size, adapters by
    their settings and the name of their base model.
    """
    values = {name: value for name, value in args.to_dict().items() if name not in ABOUT_RESUMING}
    values |= {"processes": args.world_size, "reward_funcs": list(rewards)}
    size = sum(p.numel() for p in model.parameters())
    values["model"] = f"{model.config.model_type}, {size} parameters"
    own = ("inference_mode", "revision", "peft_version")  # of the loading, not of the run
    for name, adapter in getattr(model, "peft_config", {}).items():
        values |= {f"lora.{name}.{k}": v for k, v in adapter.to_dict().items() if k not in own}
    if hasattr(dataset, "__len__"):
        values["train_dataset"] = f"{len(dataset)} rows of {', '.join(dataset.column_names)}"
    return values


def differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, str]:
    """What differs, with the checkpoint's value and the run's: what changes results, and what does not.

    >>> differences({"beta": 0.0, "seed": 1, "save_steps": 5}, {"beta": 0.1, "seed": 1, "save_steps": 9})
    ('beta 0.0 is now 0.1', 'save_steps 5 is now 9')
    """
    names = [name for name in sorted(saved.keys() | own.keys()) if saved.get(name) != own.get(name)]
    words = {name: f"{name} {saved.get(name)!r:.200} is now {own.get(name)!r:.200}" for name in names}
    may_change = MAY_CHANGE
    if saved.get("teacher_url") and own.get("teacher_url"):  # only its address is another
        may_change += ("teacher_url",)
    harmless = [name for name in names if name.startswith(may_change)]
    return ", ".join(words[n] for n in names if n not in harmless), ", ".join(words[n] for n in harmless)


def _plain_value(value: Any) -> Any:
    """For JSON: sets in order, anything else by its ``repr`` without addresses."""
    if isinstance(value, set | frozenset):
        return sorted(map(str, cast(set[Any], value)))
    return re.sub(r" at 0x\w+", "", repr(value))


class Checkpoints:
    """Saves the checkpoints of a trainer, and finds the one to resume from; every process calls every method."""

    def __init__(self, folder: RunFolder, args: GEARConfig, accelerator: Accelerator) -> None:
        self.folder, self.args, self.accelerator = folder, args, accelerator
        self.run, self.configuration = "", dict[str, Any]()
        """The id of the run under way, and what a resumed run is compared by."""
        self.last: str | None = None
        """The last whole checkpoint of the run, or the one that it resumed from."""
        self.same = True
        """Whether the checkpoint that it resumed from was made with the same configuration."""
        self.limit = args.save_total_limit
        """Of checkpoints of the run; `train` hides it from transformers, which deletes other folders too."""
        self.writes_aside = False
        """While TRL writes into the unfinished folder."""

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the folder's lock; ``ValueError`` on every process if another run holds it."""
        held = self.folder.held()
        self._on_main(held.__enter__)
        try:
            yield
        finally:
            if self.accelerator.is_main_process:
                held.__exit__(None, None, None)

    def begin(self, resume: str | bool | None, configuration: dict[str, Any]) -> str | None:
        """Begin a run or go on with one: the checkpoint to resume from; ``ValueError`` if it cannot.

        True and "latest" mean the newest whole checkpoint of the folder's run. A new run needs a folder without
        checkpoints, or ``overwrite_output_dir``, which deletes them. Records outside of the folder stay.
        """

        def choose() -> tuple[str, str | None, bool]:
            self.folder.check_records()
            if resume is None or resume is False:
                self._prepare_new_run()
                return self.folder.begin(), None, True
            path, manifest = self._chosen(resume)
            changed = self._changed(path, manifest, configuration)
            goes_back = resume not in (True, "latest") and self._goes_back(path, manifest)
            run = None if changed or goes_back else manifest.run
            return self.folder.begin(run), str(path), not changed

        configuration = json.loads(json.dumps(configuration, sort_keys=True, default=_plain_value))
        self.configuration = configuration
        self.run, self.last, self.same = self._on_main(choose)
        return self.last

    def _goes_back(self, path: Path, manifest: Manifest) -> bool:
        """Whether the folder has later checkpoints of the run: they must not count as newer than the next."""
        inside = path.resolve().parent == self.folder.path.resolve()
        newest = newest_whole(self.folder.path, manifest.run)[0] if inside else path
        if newest.resolve() == path.resolve():
            return False
        message = "resume_from_checkpoint: %s is older than %s, so this is a new run; the later ones stay"
        logger.warning(message, path, newest.name)
        return True

    def _prepare_new_run(self) -> None:
        """Refuse a folder with checkpoints, which a new run would replace in part; keep old records."""
        folder = self.folder
        names = ", ".join(path.name for path in reversed(checkpoints_in(folder.path)))
        if self.args.overwrite_output_dir:
            folder.clear()
        elif names:
            raise ValueError(
                f"output_dir: {folder.path} holds a run already ({names}); go on with it by "
                "train(resume_from_checkpoint=True), delete it and begin anew by overwrite_output_dir=True, or "
                "give another output_dir"
            )
        else:
            folder.keep_old_records()

    def _chosen(self, resume: str | bool) -> tuple[Path, Manifest]:
        folder = self.folder
        if resume is True or resume == "latest":
            return newest_whole(folder.path, folder.run)
        path = Path(str(resume))
        try:
            manifest = check_checkpoint(path)
        except BrokenCheckpointError as broken:
            raise ValueError(
                f"resume_from_checkpoint: {resume} is no whole checkpoint: {broken}; name another, or take latest"
            ) from None
        elsewhere = path.resolve().parent != folder.path.resolve()
        others = folder.leftovers() if elsewhere and folder.run != manifest.run else []
        if others:
            raise ValueError(
                f"output_dir: {folder.path} holds another run than {resume} ({', '.join(others)}); give another "
                "output_dir"
            )
        return path, manifest

    def _changed(self, path: Path, manifest: Manifest, configuration: dict[str, Any]) -> str:
        """What differs and changes results; ``ValueError`` without ``resume_anyway``."""
        changed, harmless = differences(manifest.configuration, configuration)
        if changed and not self.args.resume_anyway:
            raise ValueError(
                f"resume_from_checkpoint: {path} was made with another configuration: {changed}; set it back, or "
                "set resume_anyway to go on from there as a new run"
            )
        if changed:
            logger.warning("resume_anyway: goes on as a new run: %s", changed)
        if harmless:
            logger.warning("resume_from_checkpoint: other settings than before: %s", harmless)
        others = [f"{name} {old}" for name, old in manifest.versions.items() if versions().get(name) != old]
        if others:
            logger.warning("%s was made with %s: last bits may differ", path, ", ".join(others))
        logger.info("resume_from_checkpoint: %s", path)
        return changed

    def save(
        self,
        state: TrainerState,
        folder: Path,
        own_save: Callable[[], None],
        weights: Mapping[str, Any],
        progress: Mapping[str, Any],
    ) -> None:
        """Write a checkpoint aside by ``own_save``, add ours, seal it, move it into place, delete old ones.

        ``weights`` are teachers and models by file, ``progress`` is where this process stands in its rollouts.
        After an error there is no checkpoint of this step, and those before are as they were.
        """
        name, main = f"checkpoint-{state.global_step}", self.args.should_save
        aside, final = folder / UNFINISHED / name, folder / name
        if main:
            shutil.rmtree(aside.parent, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            self.writes_aside = True
            own_save()
            _write(aside, weights, main)
            torch.save(dict(progress), self._progress_file(aside))
            self.accelerator.wait_for_everyone()
            best = folder / f"checkpoint-{state.best_global_step}"
            if best == final or best.is_dir():  # transformers looks for it aside, before a shard may be there
                state.best_model_checkpoint = str(best)
                if main:
                    state.save_to_json(str(aside / "trainer_state.json"))
            if main:
                whole = not self.args.save_only_model
                seal(aside, run=self.run, configuration=self.configuration, resumable=whole)
                move_into_place(aside, final)
                rotate(folder, self.run, self.limit, state.best_model_checkpoint)
        except BaseException:
            shutil.rmtree(aside.parent, ignore_errors=True)  # the disk may be full
            raise
        finally:
            self.writes_aside = False
        self.accelerator.wait_for_everyone()
        self.last = str(final)

    def load(self, checkpoint: Path, weights: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load the weights, and return the ``progress`` of this process; None where the run is a new one.

        Weights that do not fit are ``ValueError`` with the checkpoint's name; a new run keeps those it has.
        """
        for name, owner in weights.items():
            file = checkpoint / name
            try:
                owner.load_state_dict(safetensors.torch.load_file(file) if file.exists() else {})
            except ValueError as error:
                if self.same:
                    raise ValueError(f"resume_from_checkpoint: {checkpoint}: {name}: {error}") from None
                logger.warning("resume_anyway: %s is not taken over: %s", checkpoint / name, error)
        if not self.same:  # rollouts of other settings may not even fit
            return None
        device = self.accelerator.device
        place: Any = "cpu" if device.type == "cpu" else device  # torch.load does not know "cpu:0"
        return torch.load(self._progress_file(checkpoint), map_location=place, weights_only=True)

    def _on_main(self, action: Callable[[], T]) -> T:
        """Run ``action`` on the first process; every process returns its result or raises its error."""
        outcome: list[Any] = [None, None]
        if self.accelerator.is_main_process:
            try:
                outcome[0] = action()
            except Exception as error:  # the other processes wait
                outcome[1] = error
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return cast(T, outcome[0])

    def _progress_file(self, folder: Path) -> Path:
        return folder / f"rollouts-{self.accelerator.process_index}.pt"


def _write(folder: Path, weights: Mapping[str, Any], writes: bool) -> None:
    for file, owner in weights.items():
        whole: dict[str, Tensor] = {}
        for name, p in owner.state_dict().items():
            # Every process gives its shard, one keeps the whole: one at a time, as the device's memory is small.
            value = p.full_tensor() if isinstance(p, DTensor) else p
            if writes:  # a copy, since tied weights share their memory
                whole[name] = value.cpu().clone(memory_format=torch.contiguous_format)
        if whole:
            safetensors.torch.save_file(whole, folder / file)


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Draw what TRL's sampler has drawn in so many epochs: one order of the rows for each."""
    if getattr(sampler, "shuffle", False):
        for _ in range(epochs):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
