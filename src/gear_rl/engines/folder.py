"""The folder of a run: one process writes it, and it says which run it holds. Knows no trainer."""

import json
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from gear_rl.files import replace_file

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
"""Beside the checkpoints: where one is written before it is moved into place."""
_FILE, _LOCK, _FINISHED = "run.json", ".lock", "trainer_state.json"


def checkpoints_in(folder: Path) -> list[Path]:
    """Everything that is named like a checkpoint, the latest step first."""
    named = (path for path in folder.glob("checkpoint-*") if path.is_dir())
    steps = [path for path in named if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(steps, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


class RunFolder:
    """The folder that a run writes to. Its record file is in it, unless ``record_file`` is an absolute path.

    ``ValueError`` for a relative one that repeats the folder, which would be made inside itself.

    >>> RunFolder(Path("nowhere"), "records.jsonl").records
    PosixPath('nowhere/records.jsonl')
    """

    def __init__(self, path: Path, record_file: str | None = None) -> None:
        self.path = path
        self.records = None if record_file is None else _record_path(path, Path(record_file).expanduser())
        # No soft lock where the file system has none: its file would outlive a process that is killed.
        self._lock = FileLock(path / _LOCK, timeout=0, fallback_to_soft=False)

    @contextmanager
    def held(self) -> Generator[None]:
        """No other process writes the folder meanwhile; may be nested. The lock dies with this process.

        ``ValueError`` names the process that has it. A file system without locks is only logged.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            facts = self._facts()
            raise ValueError(
                f"output_dir: process {facts.get('pid', '?')} on {facts.get('host', 'this machine')} is writing "
                f"{self.path}; wait for it, end it, or give another output_dir"
            ) from None
        except OSError as error:
            message = "output_dir: %s cannot be locked (%s); let no other process write it"
            logger.warning(message, self.path, error)
        try:
            yield
        finally:
            self._lock.release()  # nothing where it is not locked

    @property
    def run(self) -> str | None:
        """The id of the run whose folder it is, if it has one."""
        return self._facts().get("run")

    def begin(self, run: str | None = None) -> str:
        """Say that ``run`` (None: a new one) is being written here by this process; returns its id."""
        run = uuid.uuid4().hex[:16] if run is None else run
        facts = {"run": run, "pid": os.getpid(), "host": socket.gethostname()}
        replace_file(self.path / _FILE, (json.dumps(facts) + "\n").encode())
        return run

    @property
    def records_outside(self) -> bool:
        """Whether the record file lies elsewhere, where another run's may be."""
        return self.records is not None and not _is_in(self.records, self.path)

    def check_records(self) -> None:
        """Raise ``ValueError`` for records outside of the folder: nothing there is replaced, cut or deleted."""
        if self.records_outside and self._has_records:
            raise ValueError(
                f"record_file: {self.records} holds records already, maybe another run's, since it is outside of "
                f"{self.path}; name a new file, or records.jsonl to have it inside"
            )

    def leftovers(self) -> list[str]:
        """What a new run in this folder would mix with or replace: checkpoints, a finished model, records."""
        names = [path.name for path in reversed(checkpoints_in(self.path))]
        names += [_FINISHED] if (self.path / _FINISHED).exists() else []
        return [*names, str(self.records)] if self._has_records else names

    def clear(self) -> None:
        """Delete the leftovers of the run before; nothing outside of the folder."""
        for path in (*checkpoints_in(self.path), self.path / UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)
        (self.path / _FINISHED).unlink(missing_ok=True)
        if self._has_records and not self.records_outside:
            cast(Path, self.records).unlink()

    def keep_old_records(self) -> None:
        """Rename the records of a run before, which a new one would replace: ``records.1.jsonl``, ``.2``, ..."""
        if self.records is not None and self._has_records:
            names = (self.records.with_suffix(f".{n}{self.records.suffix}") for n in count(1))
            kept = self.records.rename(next(path for path in names if not path.exists()))
            logger.warning("record_file: the records of the run before are kept as %s", kept)

    @property
    def _has_records(self) -> bool:
        return self.records is not None and self.records.is_file() and self.records.stat().st_size > 0

    def _facts(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / _FILE).read_bytes())
        except (OSError, ValueError):
            return {}


def _record_path(folder: Path, file: Path) -> Path:
    if not file.is_absolute() and _is_in(file, folder) and not _is_in(Path.cwd(), folder):
        name = os.path.relpath(file, folder)
        raise ValueError(f"record_file: {file} is relative to the run's folder, {folder}; write {name}")
    return folder / file


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
