"""The runs of a comparison in processes, a few at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from gear_rl.lab.cells import Cell
from gear_rl.lab.spec import Spec, failed_cell, finished_cell
from gear_rl.lab.training import run_cell


def run_cells(
    specs: Sequence[Spec],
    folder: Path,
    *,
    jobs: int,
    each: Callable[[Cell], None] = lambda cell: None,
    estimate: Callable[[float], None] = lambda seconds: None,
) -> list[Cell]:
    """The numbers of every run, in the order of the specs; runs that are finished in the folder are not repeated.

    ``jobs`` processes run them; ``each`` gets every run as it ends, ``estimate`` the seconds that one will take,
    after its first steps. A process that dies fails its own run alone and is replaced. When this is interrupted,
    or killed, the runs under way end too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes: more threads only wait for each other
    cells = [finished_cell(spec, folder) for spec in specs]
    others = {*multiprocessing.active_children()}
    context = multiprocessing.get_context("spawn")
    # Our end is open here alone: once it is closed, or we die, every process ends.
    ours, alive = context.Pipe()
    scratch = tempfile.TemporaryDirectory(prefix="gear-cells-", ignore_cleanup_errors=True)
    thread, pools = threading.local(), list[ProcessPoolExecutor]()

    def run_alone(spec: Spec) -> Cell:
        if getattr(thread, "process", None) is None:
            thread.process = ProcessPoolExecutor(1, context, _begin, (alive, scratch.name))
            pools.append(thread.process)
        try:
            return thread.process.submit(_run_and_tell, spec, folder).result()
        except BrokenProcessPool as error:
            thread.process = None
            return failed_cell(spec, f"its process died: {error}")

    with ThreadPoolExecutor(jobs) as threads:
        try:
            futures = {threads.submit(run_alone, specs[i]): i for i, cell in enumerate(cells) if cell is None}
            left = set(futures)
            while left:
                # A wait without an end may miss the signal that comes just before it.
                done, left = wait(left, timeout=1, return_when=FIRST_COMPLETED)
                while ours.poll():
                    estimate(ours.recv())
                for future in done:
                    cells[futures[future]] = future.result()
                    each(future.result())
        except BaseException:
            ours.close()
            for process in {*multiprocessing.active_children()} - others:
                process.kill()  # one that is still importing does not watch our end
            raise
        finally:
            threads.shutdown(cancel_futures=True)
            for pool in pools:
                pool.shutdown()  # Python 3.12 hangs at its exit after a broken pool that is collected earlier
            ours.close()
            scratch.cleanup()
    return [cell for cell in cells if cell is not None]


_parent: Any = None
"""The pipe to the process that started this one."""


def _begin(alive: Any, scratch: str) -> None:
    """A new process is silent, and ends with the one that started it, which removes its temporary files."""
    global _parent
    tempfile.tempdir, _parent = scratch, alive
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)

    def watch() -> None:
        try:
            alive.recv()
        except EOFError:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_and_tell(spec: Spec, folder: Path) -> Cell:
    return run_cell(spec, folder, tell=_parent.send)
