"""Clocks and peak memory of the benchmarks.

On a CPU only CPU seconds count, and only their ratios within one process: a neighbour on the machine moves wall
time by any factor. Knows nothing of what is measured.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

Run = Callable[[], object]
Say = Callable[[str], None]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def now(device: str) -> float:
    """CPU seconds of this process; for CUDA wall seconds, read when all work on the device is done.

    >>> now("cpu") <= now("cpu")
    True
    """
    if device != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(runs: Mapping[str, Run], repeats: int, device: str, say: Say) -> dict[str, list[float]]:
    """Seconds of each repeat of each run, in an order that rotates from repeat to repeat.

    Whatever slows the machine down for a while then affects all runs alike. Warms nothing up.

    >>> list(interleaved({"a": lambda: None, "b": lambda: None}, 2, "cpu", lambda name: None))
    ['a', 'b']
    """
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        shift = repeat * len(names) // repeats
        for name in names[shift:] + names[:shift]:
            say(name)
            begin = now(device)
            runs[name]()
            seconds[name].append(now(device) - begin)
    return seconds


def ratio(own: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Least seconds over least seconds, and the least, median and greatest ratio of one repeat.

    Where one was measured more often than the other, only the first repeats count, made beside each other.

    >>> ratio([2.0, 3.0], [1.0, 2.0, 0.5])
    {'ratio': 2.0, 'least': 1.5, 'median': 1.75, 'most': 2.0}
    """
    each = [a / b for a, b in zip(own, base, strict=False)]
    ratios = {
        "ratio": min(own[: len(each)]) / min(base[: len(each)]),
        "least": min(each),
        "median": statistics.median(each),
        "most": max(each),
    }
    return {name: round(value, 3) for name, value in ratios.items()}


def peak_extra_mb(run: Run, device: str = "cpu") -> float | None:
    """MiB that ``run`` adds at its peak to what was held before it; None where the system cannot tell.

    Call it in a fresh process: memory that an allocator kept from earlier work hides a part of the peak.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if not _STATUS.exists():
        return None
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # only glibc has it
        libc.malloc_trim(0)
    _CLEAR.write_text("5")  # resets the peak to what is resident now
    before = _status_kb("VmRSS")
    run()
    return (_status_kb("VmHWM") - before) / 1024


def _status_kb(key: str) -> float:
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith(key + ":")]
    return float(line.split()[1])
