"""Processes that run the cells of a comparison, a few at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from gear_rl.lab.spec import Spec, failed, finished, read_cell


class Workers:
    """So many processes that run cells; each is started when it is needed, and replaced if it dies."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._workers = [_Worker(folder) for _ in range(jobs)]
        self._idle = SimpleQueue[_Worker]()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self._workers:
            worker.stop()

    def run(
        self, specs: Sequence[Spec], each: Callable[[dict[str, Any]], None] = lambda cell: None
    ) -> list[dict[str, Any]]:
        """Run what is not there yet, and return every cell in the order of the specs.

        ``each`` gets every cell that was run, as it ends. A process that dies takes the cell it is at along. What
        is finished when this is interrupted is not run again.
        """
        rows = [finished(spec, self.folder) for spec in specs]
        with ThreadPoolExecutor(max_workers=len(self._workers)) as pool:
            try:
                futures = {pool.submit(self._one, specs[i]): i for i, row in enumerate(rows) if row is None}
                for future in as_completed(futures):
                    rows[futures[future]] = future.result()
                    each(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.__exit__()
                raise
        return [row for row in rows if row is not None]

    def _one(self, spec: Spec) -> dict[str, Any]:
        worker = self._idle.get()
        try:
            return worker.run(spec)
        finally:
            self._idle.put(worker)


class _Worker:
    """A process that runs cells, with one thread: more only wait for each other. Started when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._errors = folder / f".worker-{uuid4().hex}.log"  # a pipe that nobody reads would fill
        self._process: subprocess.Popen[str] | None = None

    def run(self, spec: Spec) -> dict[str, Any]:
        """The cell that the process leaves in the folder; a failed one if it leaves none."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(asdict(spec)) + "\n")
            process.stdin.flush()
            done = process.stdout.readline() == "done\n"
        except OSError:
            done = False
        cell = read_cell(spec, self.folder) if done else None
        if cell is not None:
            return cell
        code = process.poll() if done else process.wait()
        last = (self._errors.read_text(errors="replace").strip().splitlines() or [""])[-1]
        self.stop()
        return failed(spec, f"the process ended with {code}: {last}")

    def stop(self) -> None:
        """End the process; another is started if more is to run."""
        if self._process is not None:
            with self._process:  # closes its pipes, and waits
                self._process.terminate()
            self._process = None
        self._errors.unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen[str]:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gear_rl.lab.training", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        return self._process
