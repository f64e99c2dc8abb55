"""Log-prob, entropy and KL of every token: cost over the bare head products, memory and errors, beside peers."""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.measure import Run, Say, interleaved, peak_extra_mb, ratio
from benchmarks.peers import COMPETITORS, bare, errors, exact, operands
from benchmarks.results import Cells
from gear_rl.tensor.logits import Head, tile_shape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TILES = ((256, 512), (256, 2048), (512, 1024), (512, 4096), (1024, 2048), (1024, 8192))
"""Tokens x vocabulary of the bare products' tiles; the fastest is the limit."""
CHECKED = 256
"""Tokens whose numbers are compared with float64, over the whole vocabulary."""
OFTEN = 3
"""How many times as often the limit and ours are timed as the peers: they are a few per cent apart."""


@torch.no_grad()
def bench_signals(
    *, tokens: int, hidden: int, vocab: int, dtype: str, device: str, repeats: int, say: Say
) -> dict[str, Any]:
    """Cost of the signals over the two bare head products, beside the peers, all in one process.

    Seconds are CPU seconds of one thread (between events on CUDA), the least of the repeats. Errors are the
    largest against float64 over the first ``CHECKED`` tokens; ``error_of_products`` are those of float32 products
    when all else is float64. Peak memory is measured in a fresh process for each. Raises ``ValueError`` for a
    size or a type that is none.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
    given = operands(tokens, hidden, vocab).to(device).to(DTYPES[dtype])
    checked = given.first(CHECKED)
    say("float64")
    true = exact(checked)
    rows: dict[str, dict[str, Any]] = {}
    for name, competitor in COMPETITORS.items():
        say(f"{name}, warming up")
        got = competitor.run(checked)
        rows[name] = {"label": competitor.label, "gives": sorted(got), "heads": competitor.heads}
        rows[name] |= {f"error_{number}": value for number, value in errors(got, true).items()}
    # Chosen before the comparison: the least of all tiles' repeats would be luckier than the peers' least.
    tiles = dict.fromkeys((min(t, tokens), min(v, vocab)) for t, v in TILES)
    tried = interleaved({f"{t}x{v}": partial(bare, given, t, v) for t, v in tiles}, 2, device, say)
    best = min(tried, key=lambda tile: min(tried[tile]))
    runs: dict[str, Run] = {name: partial(one.run, given) for name, one in COMPETITORS.items()}
    runs["bare"] = partial(bare, given, *(int(size) for size in best.split("x")))
    seconds = interleaved(runs, repeats, device, say)
    close = {name: runs[name] for name in ("bare", "eager")}
    for name, more in interleaved(close, (OFTEN - 1) * repeats, device, say).items():
        seconds[name] += more
    for name, row in rows.items():
        say(f"memory of {name}")
        row |= ratio(seconds[name], seconds["bare"]) | {"seconds": round(min(seconds[name]), 4)}
        # CUDA's allocator knows its peak; a CPU's shows in a fresh process alone.
        peak = _peak if device == "cuda" else fresh_peak
        row["extra_mb"] = peak(name, tokens, hidden, vocab, dtype, device)
    return {
        "what": "seconds over those of the two bare head products, least of the repeats",
        "tokens": tokens,
        "hidden": hidden,
        "vocab": vocab,
        "dtype": dtype,
        "device": device,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "checked_tokens": len(checked.token_N),
        "error_of_products": errors(exact(checked, product=torch.float32), true),
        "tile": "{}x{}".format(*tile_shape(tokens, Head(weight_VD=given.weight_VD))),
        "best_tile": best,
        "competitors": rows,
    }


def fresh_peak(name: str, tokens: int, hidden: int, vocab: int, dtype: str, device: str) -> float | None:
    """MiB beyond the operands of that competitor in a process of its own; None where it cannot be measured."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_peak, name, tokens, hidden, vocab, dtype, device).result()


@torch.no_grad()
def _peak(name: str, tokens: int, hidden: int, vocab: int, dtype: str, device: str) -> float | None:
    torch.set_num_threads(1)
    run = COMPETITORS[name].run
    run(operands(64, hidden, 4096).to(device).to(DTYPES[dtype]))  # loads the libraries
    given = operands(tokens, hidden, vocab).to(device).to(DTYPES[dtype])
    peak = peak_extra_mb(lambda: run(given), device)
    return None if peak is None else round(peak, 2)


def signals_cells(result: Mapping[str, Any]) -> Cells:
    """Cost, memory and errors of every competitor as a table."""
    names = {"logp": "log-prob", "kl": "KL", "teacher_logp": "teacher's log-prob"}
    rows: list[tuple[str, ...]] = []
    for row in result["competitors"].values():
        gives = ", ".join(str(names.get(name, name)) for name in row["gives"]) or "nothing"
        time = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        memory = "n/a" if row["extra_mb"] is None else f"{row['extra_mb']:.0f}"
        wrong = [value for key, value in row.items() if key.startswith("error_")]
        error = f"{max(wrong):.1e}" if wrong else ""
        rows.append((row["label"], gives, str(row["heads"]), time, memory, error))
    below = [
        f"Errors: the largest against float64 over the first {result['checked_tokens']} tokens; float32 products "
        f"alone leave up to {max(result['error_of_products'].values()):.1e}. Time: least of {result['repeats']} "
        f"repeats over the fastest bare products (tile {result['best_tile']}), in brackets the least and the "
        f"greatest ratio of one repeat. gear-rl's tile: {result['tile']}."
    ]
    sizes = f"T = {result['tokens']}, H = {result['hidden']}, V = {result['vocab']}"
    title = f"{sizes}, {result['dtype']}, one thread, {result['device']}"
    columns = ("", "gives", "head products", "time / bare", "extra MiB", "largest error")
    return Cells(title, columns, rows, below)
