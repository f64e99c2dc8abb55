"""Clocks, peak memory and the fit of an exponent: what every benchmark here is measured with.

A neighbour on the machine moves wall time by any factor; on a CPU only CPU seconds are read, and only their
ratios in one process are worth keeping. Knows nothing of what is measured.
"""

import ctypes
import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

Run = Callable[[], object]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def seconds_of(run: Run, device: str = "cpu") -> float:
    """Seconds that ``run`` takes: of all this process's threads on a CPU, between two events on CUDA.

    >>> seconds_of(lambda: None) < 1
    True
    """
    if device != "cuda":
        begin = time.process_time()
        run()
        return time.process_time() - begin
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    run()
    end_event.record()
    torch.cuda.synchronize()
    return begin_event.elapsed_time(end_event) / 1000


def interleaved(
    runs: Mapping[str, Run],
    repeats: int,
    device: str = "cpu",
    say: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
    """Seconds of each repeat of each run; one after the other, in an order that turns from repeat to repeat.

    Whatever slows the machine down for a while then meets all of them. Nothing is warmed up here. Raises
    ``ValueError`` for no repeat.

    >>> list(interleaved({"a": lambda: None, "b": lambda: None}, repeats=2))
    ['a', 'b']
    """
    if repeats < 1:
        raise ValueError(f"repeats: {repeats}; give 1 or more")
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        shift = repeat * len(names) // repeats
        for name in names[shift:] + names[:shift]:
            say(name)
            seconds[name].append(seconds_of(runs[name], device))
    return seconds


def ratio(own: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Least seconds over least seconds, and of the ratios of each repeat the least, the median and the greatest.

    Of what was measured more often than the other the first repeats count, those made beside each other.

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


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The ``k`` of ``seconds ~ size ** k``: the least-squares slope of the logarithms.

    Raises ``ValueError`` for fewer than two different sizes, and for a number that is not positive.

    >>> round(exponent([1, 4, 16], [3.0, 12.0, 48.0]), 6)
    1.0
    """
    if len(set(sizes)) < 2 or min(*sizes, *seconds) <= 0:
        raise ValueError(f"sizes: {list(sizes)} with {list(seconds)} s; give two sizes or more, all positive")
    x, y = ([math.log(value) for value in values] for values in (sizes, seconds))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)


def can_measure_peaks(device: str = "cpu") -> bool:
    """True where ``peak_extra_mb`` works: on CUDA, and where Linux lets a process reset its own peak."""
    return device == "cuda" or (_STATUS.exists() and os.access(_CLEAR, os.W_OK))


def peak_extra_mb(run: Run, device: str = "cpu") -> float:
    """MiB that ``run`` held at its peak beyond what was held before it; measured, in this process.

    Meant for a fresh process: what earlier work freed but the allocator kept would hide a part of the peak, so
    free pages are given back first. Raises ``ValueError`` where the system cannot tell.
    """
    if not can_measure_peaks(device):
        raise ValueError(
            f"peak memory: {platform.system()} has no /proc/self/clear_refs that this process may write; measure "
            "on Linux, or with device cuda"
        )
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc's alone
        libc.malloc_trim(0)
    _CLEAR.write_text("5")  # the peak is now what is resident
    before = _status_kb("VmRSS")
    run()
    return (_status_kb("VmHWM") - before) / 1024


def _status_kb(key: str) -> float:
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith(key + ":")]
    return float(line.split()[1])
