"""A tiny run with everything that a checkpoint of ours holds, in a process of its own that may be killed.

Processes are forked from one that has imported everything: a hundred kills in minutes, not hours.
"""

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

STEPS = 5
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "num_iterations": 2,
    "teacher_model_kind": "ema", "learning_rate": 0.02, "record_max_mb": 4.0,
}  # fmt: skip
"""Every step is saved, also in the middle of a generation's rollouts; the teacher has weights of its own."""
_WRITES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}


def train(model: str, folder: Path, resume: bool) -> None:
    """The run, from its beginning or its newest whole checkpoint; its last weights go beside the folder."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    settings = tiny.settings(folder, **SETTINGS, record_file=str(folder / "records.jsonl"))
    trainer = GEARTrainer(model, tiny.vowels, GEARConfig(**settings), tiny.rows(12), credit=Gear())
    for callback in (transformers.PrinterCallback, transformers.ProgressCallback):
        trainer.remove_callback(callback)
    trainer.train(resume_from_checkpoint=resume or None)
    found = sha256()
    for name, weight in sorted(trainer.model.state_dict().items()):
        found.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    folder.with_suffix(".weights").write_text(found.hexdigest())


@dataclass
class Ended:
    """How a process ended: its exit code, the signal that it died of as a negative one, and what it said."""

    code: int
    said: str
    seconds: float


def forked(work: Callable[[], None], log: Path, kill_after: float | None = None) -> Ended:
    """Run ``work`` in a fork of this process; it is killed after so many seconds if it still runs."""
    begin = time.perf_counter()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(work, log)
    deadline = None if kill_after is None else begin + kill_after
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if deadline is not None and time.perf_counter() >= deadline:
            os.kill(child, signal.SIGKILL)
            deadline = None
        time.sleep(0.005)
    said = log.read_text(errors="replace") if log.exists() else ""
    return Ended(os.waitstatus_to_exitcode(status), said, time.perf_counter() - begin)


def _become(work: Callable[[], None], log: Path) -> None:
    """The child: all that it says goes to the log, and nothing of the parent's is run at its end."""
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def dying_at(folder: Path, number: int, work: Callable[[], None]) -> Callable[[], None]:
    """``work`` that kills itself just before its ``number``-th change of a file in the folder.

    Python's audit events name them. What torch and safetensors write in C++ and Rust is between two of them;
    kills at random times land there.
    """

    def killed() -> None:
        count = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in _WRITES and arguments and str(arguments[0]).startswith(str(folder)):
                if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
                    return  # to read
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        work()

    return killed


def counted(folder: Path, work: Callable[[], None], log: Path) -> tuple[int, float]:
    """How many changes of files in the folder ``work`` makes on its way to its end, and its seconds."""
    counts = folder.with_suffix(".count")

    def count() -> None:
        seen = [0]

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if event in _WRITES and arguments and str(arguments[0]).startswith(str(folder)):
                if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
                    return
                seen[0] += 1

        sys.addaudithook(watch)
        work()
        total = seen[0]
        counts.write_text(str(total))

    ended = forked(count, log)
    if ended.code:
        raise RuntimeError(f"the run by itself fails:\n{ended.said}")
    return int(counts.read_text()), ended.seconds


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
