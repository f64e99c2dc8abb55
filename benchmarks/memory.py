"""The peak memory that each competitor adds to its operands, measured in a process of its own.

A process that did other work before would hide a part of the peak in memory that its allocator kept.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import can_measure_peaks, peak_extra_mb
from benchmarks.peers import COMPETITORS, chosen, operands, why_missing

ROOT = Path(__file__).parents[1]
"""Where ``python -m benchmarks`` works."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def bench_memory(
    *,
    tokens: Sequence[int] = (1024,),
    hidden: int = 1024,
    vocab: Sequence[int] = (151936,),
    dtype: str = "float32",
    device: str = "cpu",
    peers: str = "all",
    say: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """MiB that each competitor holds at its peak beyond its operands, for every pair of the sizes.

    None where a competitor cannot run; ``why`` says why. Raises ``ValueError`` where the system cannot tell.
    """
    check_dtype(dtype)
    names = chosen(peers)
    sizes = [(t, v) for v in vocab for t in tokens]
    rows: dict[str, Any] = {}
    for name in names:
        peaks: list[float | None] = []
        why = ""
        for num_tokens, num_vocab in sizes:
            say(f"{name}, {num_tokens} tokens, vocabulary {num_vocab}")
            peak = fresh_peak(name, num_tokens, hidden, num_vocab, dtype, device)
            peaks.append(peak.get("extra_mb"))
            why = peak.get("why", why)
        competitor = COMPETITORS[name]
        rows[name] = {"label": competitor.label, "gives": competitor.gives, "extra_mb": peaks}
        rows[name] |= {"why": why} if why else {}
    return {
        "what": "MiB at the peak beyond the operands, each in a fresh process",
        "hidden": hidden,
        "dtype": dtype,
        "device": device,
        "sizes": [{"tokens": t, "vocab": v} for t, v in sizes],
        "competitors": rows,
    }


def check_dtype(dtype: str) -> torch.dtype:
    """The torch type of that name; ``ValueError`` for one that no bench has operands for.

    >>> check_dtype("float32")
    torch.float32
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def fresh_peak(
    name: str, tokens: int, hidden: int, vocab: int, dtype: str = "float32", device: str = "cpu"
) -> dict[str, Any]:
    """``extra_mb`` of that competitor in a process of its own, or ``why`` it cannot run.

    Raises ``ValueError`` where the system cannot measure a peak or if the process dies of anything but a
    competitor's own refusal.
    """
    if not can_measure_peaks(device):
        peak_extra_mb(lambda: None, device)  # raises the one error that says what to do
    spec = {
        "name": name,
        "tokens": tokens,
        "hidden": hidden,
        "vocab": vocab,
        "dtype": dtype,
        "device": device,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", json.dumps(spec)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(f"bench memory: {name} at {tokens} x {vocab} ended early: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the fresh process does: operands, a small call that loads the libraries, then the one that counts."""
    torch.set_num_threads(1)
    given = operands(spec["tokens"], spec["hidden"], spec["vocab"], spec["device"]).to(
        check_dtype(spec["dtype"])
    )
    why = why_missing(spec["name"], given)
    if why is not None:
        return {"why": why}
    run = COMPETITORS[spec["name"]].run
    with torch.no_grad():
        try:
            run(given.first(64, 4096))
        except (RuntimeError, ImportError) as error:
            return {"why": str(error).strip().splitlines()[0]}
        return {"extra_mb": round(peak_extra_mb(lambda: run(given), spec["device"]), 2)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(json.loads(sys.argv[1]))) + "\n")
