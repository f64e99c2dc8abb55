"""A tiny run with everything that a checkpoint of ours holds, in a process of its own that may be killed.

Processes are forked from one that has imported everything: a hundred kills in minutes, not hours.
"""

import faulthandler
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import transformers

from engines import tiny
from gear_rl import Gear, GEARConfig, GEARTrainer
from gear_rl.engines.folder import UNFINISHED

STEPS = 5
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "num_iterations": 2,
    "teacher_model_kind": "ema", "learning_rate": 0.02, "record_max_mb": 4.0,
}  # fmt: skip
"""Every step is saved, also in the middle of a generation's rollouts; the teacher has weights of its own."""
FIRST = "checkpoint-1"
_WRITES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}


def train(model: str, folder: Path, resume: bool) -> None:
    """The run, from its beginning or its newest whole checkpoint.

    Beside the folder it writes the step it resumed from (``.began``) and a hash of its weights (``.weights``).
    """
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    settings = tiny.settings(folder, **SETTINGS, record_file=str(folder / "records.jsonl"))
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(12), credit=Gear())
    for callback in (transformers.PrinterCallback, transformers.ProgressCallback):
        trainer.remove_callback(callback)

    class Began(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            folder.with_suffix(".began").write_text(str(state.global_step))

    trainer.add_callback(Began())
    trainer.train(resume_from_checkpoint=resume or None)
    found = sha256()
    for name, weight in sorted(trainer.model.state_dict().items()):
        found.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    folder.with_suffix(".weights").write_text(found.hexdigest())


def forked(
    work: Callable[[], None], log: Path, kill_after: float | None = None, since: Path | None = None
) -> tuple[int, str]:
    """Run ``work`` in a fork of this process; its exit code (a signal is negative), and what it printed.

    It is killed ``kill_after`` seconds after ``since`` exists.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            faulthandler.enable()
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)  # nothing of the parent's is run at its end
    begin = None
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if begin is None and since is not None and since.exists():
            begin = time.perf_counter()
        if kill_after is not None and begin is not None and time.perf_counter() - begin >= kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = None
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1]), log.read_text(errors="replace")


def _watch(folder: Path, change: Callable[[int, str, tuple[Any, ...]], None]) -> None:
    """Call ``change`` with a number just before each change of a file in the folder, from now on.

    Python's audit events name them. What torch and safetensors write in C++ and Rust is between two of them;
    kills at random times happen there.
    """
    numbers = itertools.count(1)

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _WRITES and arguments and str(arguments[0]).startswith(f"{folder}{os.sep}"):
            if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
                return  # to read
            change(next(numbers), event, arguments)

    sys.addaudithook(seen)


def dying_at(folder: Path, fatal: int, work: Callable[[], None]) -> Callable[[], None]:
    """``work`` that kills itself just before its ``fatal``-th change of a file in the folder."""

    def killed() -> None:
        _watch(folder, lambda number, *_: os.kill(os.getpid(), signal.SIGKILL) if number == fatal else None)
        work()

    return killed


def course(folder: Path, work: Callable[[], None], log: Path) -> tuple[int, list[int], float]:
    """The course of a run that is left alone.

    The number of the change that moves the first checkpoint into place, the later changes inside the write of a
    checkpoint, and the seconds from the first checkpoint to the end.
    """
    facts = folder.with_suffix(".course")

    def follow() -> None:
        writes, first, begin = list[int](), 0, 0.0

        def count(number: int, event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal first, begin
            if first and f"{UNFINISHED}{os.sep}" in str(arguments[0]):
                writes.append(number)
            elif event == "os.rename" and Path(arguments[1]) == folder / FIRST:
                first, begin = number, time.perf_counter()

        _watch(folder, count)
        work()
        facts.write_text(json.dumps([first, writes, time.perf_counter() - begin]))

    code, said = forked(follow, log)
    if code:
        raise RuntimeError(f"the run by itself fails:\n{said}")
    first, writes, seconds = json.loads(facts.read_text())
    return first, writes, seconds
