"""Log-prob, entropy and KL of every token, against bare head products and peers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.measure import Run, can_measure_peaks, exponent, interleaved, ratio
from benchmarks.memory import check_dtype, fresh_peak
from benchmarks.peers import (
    COMPETITORS,
    TILES,
    Numbers,
    Operands,
    bare,
    chosen,
    errors,
    exact,
    operands,
    why_missing,
)
from gear_rl.tensor.logits import Head, tile_shape

CHECKED = 256
"""Tokens whose numbers are compared with float64, over the whole vocabulary."""
RANGE = 16
"""The largest size of a scaling over its smallest."""
SCALED = ("bare", "eager", "trl_both", "naive")
TRIES = 2
"""Times that each tile of the bare products is tried before the fastest is taken; most repeats of a scaling."""
CLOSE = ("bare", "eager")
"""Runs so close to each other that they are timed ``OFTEN`` times as often as the rest."""
OFTEN = 3
Say = Callable[[str], None]


@torch.no_grad()
def bench_signals(
    *,
    tokens: int = 1024,
    hidden: int = 1024,
    vocab: int = 151936,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 3,
    peers: str = "all",
    scaling: bool = False,
    memory: bool = True,
    say: Say = lambda name: None,
) -> dict[str, Any]:
    """Cost of the signals over that of the two bare head products, beside the peers, all in one run.

    Seconds are CPU seconds of one thread (between events on CUDA), the least of the repeats, of which the
    products and the signals have ``OFTEN`` times as many as the peers; the products are the fastest of
    ``TILES``, tried ``TRIES`` times each beforehand. Errors are the largest ones against float64 over the first
    ``CHECKED`` tokens; ``error_of_products`` are those that float32 products leave when all else is float64, and
    ``tile`` is the size that the signals take here. Peak memory is measured, each in a fresh process, and None
    where the system cannot tell. With ``scaling`` time and memory are measured over a 16-fold range of tokens
    and of vocabulary, and the exponents fitted. What cannot run here is None, and ``why`` says why. Raises
    ``ValueError`` for a size, a type or a word that is none.
    """
    kind = check_dtype(dtype)
    names = chosen(peers)
    if repeats < 1:
        raise ValueError(f"repeats: {repeats}; give 1 or more")
    if scaling and min(tokens * 4, vocab) < RANGE:
        raise ValueError(f"tokens: {tokens}, vocab: {vocab} are too few to be parted into {RANGE}; give more")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: 'cuda', but torch sees no GPU; leave it at cpu")
    plain = operands(tokens, hidden, vocab, device)
    given = plain.to(kind)
    rounded = plain.to(torch.bfloat16)
    why = {name: reason for name in names if (reason := why_missing(name, given))}
    rows, of_products = _errors(names, given, why, say)
    # The fastest tile is chosen beforehand and then timed as often as its rivals: the least of many draws would
    # be lucky where theirs is of few.
    shapes = dict.fromkeys((min(t, tokens), min(v, vocab)) for t, v in TILES)
    tried = interleaved(
        {f"bare {t}x{v}": lambda t=t, v=v: bare(given, t, v) for t, v in shapes}, TRIES, device, say
    )
    tiles = {name.removeprefix("bare "): min(times) for name, times in tried.items()}
    best = min(tiles, key=lambda tile: tiles[tile])
    token_tile, vocab_tile = (int(size) for size in best.split("x"))
    fastest = partial(bare, token_tile=token_tile, vocab_tile=vocab_tile)
    runs: dict[str, Run] = {"bare": lambda: fastest(given)}
    runs |= {name: lambda name=name: COMPETITORS[name].run(given) for name in rows if name != "bare"}
    # The other type of operands, for the ratio of the two.
    other = plain if kind == torch.bfloat16 else rounded
    runs["eager, other type"] = lambda: COMPETITORS["eager"].run(other)
    COMPETITORS["eager"].run(other.first(600, 8192))
    seconds = interleaved(runs, repeats, device, say)
    close = {name: runs[name] for name in CLOSE if name in runs}
    for name, more in interleaved(close, (OFTEN - 1) * repeats, device, say).items():
        seconds[name] += more
    for name, row in rows.items():
        row |= ratio(seconds[name], seconds["bare"]) | {"seconds": round(min(seconds[name]), 4)}
        row["extra_mb"] = None
        if memory and can_measure_peaks(device):
            say(f"memory of {name}")
            row["extra_mb"] = fresh_peak(name, tokens, hidden, vocab, dtype, device).get("extra_mb")
    result: dict[str, Any] = {
        "what": "seconds over those of the two bare head products, least of the repeats",
        "tokens": tokens,
        "hidden": hidden,
        "vocab": vocab,
        "dtype": dtype,
        "device": device,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "checked_tokens": min(CHECKED, tokens),
        "error_of_products": of_products,
        "tile": "{}x{}".format(*tile_shape(tokens, Head(weight_VD=given.weight_VD))),
        "best_tile": best,
        "tiles": {tile: round(value / tiles[best], 3) for tile, value in tiles.items()},
        "gflops_bare": round(4 * tokens * hidden * vocab / min(seconds["bare"]) / 1e9, 1),
        **_headlines(rows, seconds, kind),
        "competitors": rows,
        "why": why,
    }
    if scaling:
        scaled = [name for name in SCALED if name in rows]
        result |= _scaling(tokens, hidden, vocab, kind, device, repeats, scaled, fastest, memory, say)
    return result


def _errors(
    names: list[str], given: Operands, why: dict[str, str], say: Say
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """A row for every competitor that runs, with its errors, and the errors of float32 products alone.

    The others' reasons go into ``why``.
    """
    say("float64")
    checked = given.first(CHECKED, len(given.weight_VD))
    true = exact(checked)
    of_products = errors(exact(checked, product=torch.float32), true)
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in why:
            continue
        competitor = COMPETITORS[name]
        say(f"{name}, warming up")
        got: Numbers = {}
        try:
            got = competitor.run(checked)
        except (RuntimeError, ImportError) as error:
            if name in ("bare", "eager"):
                raise
            why[name] = str(error).strip().splitlines()[0]
            continue
        row: dict[str, Any] = {
            "label": competitor.label,
            "gives": competitor.gives,
            "heads": competitor.heads,
        }
        row |= {f"error_{number}": value for number, value in errors(got, true).items()}
        if "kl" in got:
            row["least_kl"] = got["kl"].min().item()
        rows[name] = row
    return rows, of_products


def _headlines(
    rows: Mapping[str, Mapping[str, Any]], seconds: Mapping[str, list[float]], kind: torch.dtype
) -> dict[str, Any]:
    """The numbers that a target is set for; None where one side of a ratio could not be had."""

    def get(name: str, key: str) -> Any:
        return rows.get(name, {}).get(key)

    def over(above: Any, below: Any, digits: int = 2) -> float | None:
        return None if above is None or not below else round(above / below, digits)

    def faster(above: str, below: str, digits: int = 2) -> float | None:
        """Least over least, of as many repeats of each: the least of more would be luckier."""
        if above not in seconds or below not in seconds:
            return None
        pairs = min(len(seconds[above]), len(seconds[below]))
        return over(min(seconds[above][:pairs]), min(seconds[below][:pairs]), digits)

    own, other = "eager", "eager, other type"
    return {
        "ratio_eager": get("eager", "ratio"),
        "ratio_bf16": faster(own, other, 3) if kind == torch.bfloat16 else faster(other, own, 3),
        "extra_mb": get("eager", "extra_mb"),
        "max_error_logp": get("eager", "error_logp"),
        "max_error_entropy": get("eager", "error_entropy"),
        "max_error_kl": get("eager", "error_kl"),
        "speedup_vs_trl": faster("trl_both", "eager"),
        "memory_vs_trl": over(get("trl_both", "extra_mb"), get("eager", "extra_mb"), 1),
        "memory_vs_naive": over(get("naive", "extra_mb"), get("eager", "extra_mb"), 1),
        "exponent_t": None,
        "exponent_v": None,
    }


def _scaling(
    tokens: int,
    hidden: int,
    vocab: int,
    kind: torch.dtype,
    device: str,
    repeats: int,
    names: list[str],
    fastest: Callable[[Operands], object],
    memory: bool,
    say: Say,
) -> dict[str, Any]:
    """Seconds and peaks over a 16-fold range of tokens (an eighth of the vocabulary) and of the vocabulary."""
    powers = [2**i for i in range(RANGE.bit_length())]
    ranges = {
        "t": [(tokens * 4 * p // RANGE, max(vocab // 8, 1)) for p in powers],
        "v": [(max(tokens // 2, 1), vocab * p // RANGE) for p in powers],
    }
    axes: dict[str, Any] = {}
    for axis, sizes in ranges.items():
        runs: dict[str, Run] = {}
        for num_tokens, num_vocab in sizes:
            given = operands(num_tokens, hidden, num_vocab, device).to(kind)
            for name in [name for name in names if why_missing(name, given) is None]:
                run = fastest if name == "bare" else COMPETITORS[name].run
                runs[f"{name} {num_tokens}x{num_vocab}"] = partial(run, given)
        seconds = interleaved(runs, min(repeats, TRIES), device, say)
        rows: dict[str, Any] = {}
        for name in names:
            least = [min(seconds.get(f"{name} {t}x{v}", [0.0])) for t, v in sizes]
            rows[name] = {
                "seconds": [round(value, 5) or None for value in least],
                "exponent": round(exponent([t * v for t, v in sizes], least), 3) if all(least) else None,
                "extra_mb": [None] * len(sizes),
            }
            # A process each: ours at every size, the others at the ends.
            measured = {"eager": range(len(sizes)), "trl_both": (0, -1), "naive": (0, -1)}.get(name, ())
            for i in measured if memory and can_measure_peaks(device) else ():
                say(f"memory of {name} over {axis}")
                dtype = str(kind).removeprefix("torch.")
                peak = fresh_peak(name, sizes[i][0], hidden, sizes[i][1], dtype, device)
                rows[name]["extra_mb"][i] = peak.get("extra_mb")
        axes[axis] = {"sizes": [{"tokens": t, "vocab": v} for t, v in sizes], "competitors": rows}
    return {
        "exponent_t": axes["t"]["competitors"]["eager"]["exponent"],
        "exponent_v": axes["v"]["competitors"]["eager"]["exponent"],
        "scaling": axes,
    }
