"""A tiny run with everything that a checkpoint of ours holds, in a process of its own that may be killed.

Processes are forked from one that has imported everything: a hundred kills in minutes, not hours.
"""

import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
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

    Beside the folder lie the step that it went on from (``.began``) and its last weights (``.weights``).
    """
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    settings = tiny.settings(folder, **SETTINGS, record_file=str(folder / "records.jsonl"))
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(12), credit=Gear())
    for callback in (transformers.PrinterCallback, transformers.ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(_Began(folder.with_suffix(".began")))
    trainer.train(resume_from_checkpoint=resume or None)
    found = sha256()
    for name, weight in sorted(trainer.model.state_dict().items()):
        found.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    folder.with_suffix(".weights").write_text(found.hexdigest())


class _Began(transformers.TrainerCallback):
    """Writes down which step a training goes on from: one that began anew would have the same weights."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.file.write_text(str(state.global_step))


@dataclass
class Ended:
    """How a process ended: its exit code, the signal that it died of as a negative one, and what it said."""

    code: int
    said: str


def forked(
    work: Callable[[], None], log: Path, kill_after: float | None = None, since: Path | None = None
) -> Ended:
    """Run ``work`` in a fork of this process; it is killed after so many seconds if it still runs.

    They are counted from when ``since`` exists, if it is given.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(work, log)
    begin = None if since is not None else time.perf_counter()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if begin is None and since is not None and since.exists():
            begin = time.perf_counter()
        if kill_after is not None and begin is not None and time.perf_counter() - begin >= kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = None
        time.sleep(0.005)
    said = log.read_text(errors="replace") if log.exists() else ""
    return Ended(os.waitstatus_to_exitcode(status), said)


def _become(work: Callable[[], None], log: Path) -> None:
    """The child: all that it says goes to the log, and nothing of the parent's is run at its end."""
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
        os._exit(code)


def _watch(folder: Path, changes: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Call ``changes`` just before each change of a file in the folder, from now on.

    Python's audit events name them. What torch and safetensors write in C++ and Rust is between two of them;
    kills at random times land there.
    """

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _WRITES and arguments and str(arguments[0]).startswith(f"{folder}{os.sep}"):
            if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
                return  # to read
            changes(event, arguments)

    sys.addaudithook(seen)


def dying_at(folder: Path, number: int, work: Callable[[], None]) -> Callable[[], None]:
    """``work`` that kills itself just before its ``number``-th change of a file in the folder."""

    def killed() -> None:
        numbers = itertools.count(1)

        def die(event: str, arguments: tuple[Any, ...]) -> None:
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        _watch(folder, die)
        work()

    return killed


@dataclass
class Course:
    """A run that was left alone: when its first checkpoint counts, and when it ends."""

    first: int
    """Number of the change of a file that moves the first checkpoint into place."""
    writes: list[int]
    """Numbers of the changes after it that are inside the write of a checkpoint."""
    seconds: float
    """From the first checkpoint to the end."""


def course(folder: Path, work: Callable[[], None], log: Path) -> Course:
    """What ``work`` does in the folder on its way to its end."""
    facts = folder.with_suffix(".course")

    def follow() -> None:
        numbers, writes = itertools.count(1), list[int]()
        first, begin = 0, 0.0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal first, begin
            number = next(numbers)
            if first and f"{UNFINISHED}{os.sep}" in str(arguments[0]):
                writes.append(number)
            elif event == "os.rename" and Path(arguments[1]) == folder / FIRST:
                first, begin = number, time.perf_counter()

        _watch(folder, count)
        work()
        facts.write_text(json.dumps([first, writes, time.perf_counter() - begin]))

    ended = forked(follow, log)
    if ended.code:
        raise RuntimeError(f"the run by itself fails:\n{ended.said}")
    return Course(*json.loads(facts.read_text()))


def torn_lines(records: Path) -> int:
    """Lines of a record file that are not whole."""
    torn = 0
    for line in records.read_bytes().splitlines() if records.exists() else []:
        try:
            json.loads(line)
        except ValueError:
            torn += 1
    return torn


def rng(seed: int, name: str) -> random.Random:
    """The random numbers of one part of the campaign."""
    return random.Random(f"{seed} {name}")
