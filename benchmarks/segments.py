"""Tokens a second that are cut into segments, against a loop and the memory's speed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Run, interleaved
from gear_rl.methods.gear import Gear
from gear_rl.tensor.segments import at_segment_start, local_maxima, segment_ids, segment_starts
from gear_rl.types import TokenSignals

ONSET, FORK = 0.5, 1.5
"""Least divergence of an onset and least entropy of a boundary, in nats; only the bench's."""
TURN_TOKENS = 500
"""Mean length of a turn."""


@torch.no_grad()
def bench_segments(
    *,
    rows: int = 512,
    tokens: int = 8192,
    repeats: int = 5,
    loop_rows: int = 8,
    device: str = "cpu",
    say: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Millions of tokens a second of each part, on one thread; all in one run, the fastest of the repeats.

    ``segmentation`` is what ``Gear`` does between its thresholds and its weights: local maxima, boundaries,
    segment ids, and the value at each segment's start; ``gear`` is a whole ``Gear()`` call on the same signals.
    The Python loop that defines the segmentation runs on ``loop_rows`` rows, and must give the same
    (``RuntimeError`` else). ``limit`` only reads what the segmentation reads and writes what it writes. Raises
    ``ValueError`` for an empty size.
    """
    for field, value in (("rows", rows), ("tokens", tokens), ("repeats", repeats), ("loop_rows", loop_rows)):
        if value < 1:
            raise ValueError(f"{field}: {value}; give 1 or more")
    level, entropy, mask, turn = signals(rows, tokens, device)
    few = tuple(x[:loop_rows] for x in (level, entropy, mask, turn))
    expected_ids, expected = by_loop(*few)
    ids, value = segmentation(level, entropy, mask, turn)
    if ids[:loop_rows].tolist() != expected_ids or value[:loop_rows].tolist() != expected:
        raise RuntimeError("the segmentation and the loop that defines it do not agree")
    given = TokenSignals(
        mask=mask,
        turn_id=turn,
        divergence=level * mask,
        student_entropy=entropy * mask,
        student_logprob=-entropy * mask,
        teacher_logprob=-(entropy + level) * mask,
    )
    advantage_B = torch.linspace(-1, 1, rows, device=level.device)
    onset = local_maxima(level, turn) & (level >= ONSET) & mask
    boundary = segment_starts(turn) | (entropy >= FORK)
    out_ids, out = torch.empty_like(ids), torch.empty_like(value)

    def limit() -> None:
        torch.add(level, entropy, out=out)
        out_ids.copy_(turn)
        mask.any()

    runs: dict[str, Run] = {
        "limit": limit,
        "local_maxima": lambda: local_maxima(level, turn),
        "segment_ids": lambda: segment_ids(onset, boundary, mask),
        "at_segment_start": lambda: at_segment_start(level, ids),
        "segmentation": lambda: segmentation(level, entropy, mask, turn),
        "gear": lambda: Gear()(advantage_B, given),
        "python_loop": lambda: by_loop(*few),
    }
    for name in runs:
        runs[name]()
    seconds = interleaved(runs, repeats, device, say)
    speed = {
        name: (loop_rows if name == "python_loop" else rows) * tokens / min(each) / 1e6
        for name, each in seconds.items()
    }
    return {
        "what": "millions of tokens a second, fastest of the repeats",
        "rows": rows,
        "tokens": tokens,
        "repeats": repeats,
        "device": device,
        "threads": torch.get_num_threads(),
        "loop_rows": min(loop_rows, rows),
        "segments_per_1000_tokens": round(1000 * segment_starts(ids).sum().item() / mask.sum().item(), 1),
        "mtokens_per_second": {name: float(f"{value:.4g}") for name, value in speed.items()},
        "least": {
            name: float(f"{speed[name] * min(each) / max(each):.4g}") for name, each in seconds.items()
        },
        "over_limit": round(speed["limit"] / speed["segmentation"], 1),
        "over_python_loop": round(speed["segmentation"] / speed["python_loop"], 1),
    }


def segmentation(level: Tensor, entropy: Tensor, mask: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Segment ids, and at every token the level at which its segment opened.

    >>> level, calm = torch.tensor([[0.0, 2.0, 0.0]]), torch.zeros(1, 3)
    >>> ids, value = segmentation(level, calm, torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3).long())
    >>> ids.tolist(), value.tolist()
    ([[0, 1, 1]], [[0.0, 2.0, 2.0]])
    """
    onset = local_maxima(level, turn) & (level >= ONSET) & mask
    ids = segment_ids(onset, segment_starts(turn) | (entropy >= FORK), mask)
    return ids, at_segment_start(level, ids)


def by_loop(level: Tensor, entropy: Tensor, mask: Tensor, turn: Tensor) -> tuple[list[Any], list[Any]]:
    """The same token by token, over Python lists: what a trainer's inner loop would be.

    >>> level, calm = torch.tensor([[0.0, 2.0, 0.0]]), torch.zeros(1, 3)
    >>> by_loop(level, calm, torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3).long())
    ([[0, 1, 1]], [[0.0, 2.0, 2.0]])
    """
    ids: list[Any] = []
    values: list[Any] = []
    lists = (x.tolist() for x in (level, entropy, mask, turn))
    for x, h, m, u in zip(*lists, strict=True):
        row: list[int] = []
        out: list[float] = []
        last, held, opened = -1, 0.0, False
        for t in range(len(x)):
            if not m[t]:
                row.append(-1)
                out.append(0.0)
                opened = False
                continue
            left = x[t - 1] if t > 0 and u[t - 1] == u[t] else -float("inf")
            right = x[t + 1] if t + 1 < len(x) and u[t + 1] == u[t] else -float("inf")
            peak = x[t] >= left and x[t] >= right and (x[t] > left or x[t] > right)
            onset = peak and x[t] >= ONSET
            closes = h[t] >= FORK or t == 0 or u[t - 1] != u[t]
            if onset or closes or not opened:
                last, held, opened = last + 1, x[t], onset
            row.append(last)
            out.append(held)
        ids.append(row)
        values.append(out)
    return ids, values


def signals(rows: int, tokens: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Heavy-tailed divergences, mostly low entropies, completions of different lengths, and their turns.

    >>> [x.shape[1] for x in signals(2, 5)]
    [5, 5, 5, 5]
    """
    seeded = torch.Generator().manual_seed(0)
    level = torch.randn(rows, tokens, generator=seeded).mul_(1.5).sub_(4).exp_()
    entropy = torch.rand(rows, tokens, generator=seeded).pow_(4).mul_(3)
    length = torch.randint(max(tokens // 8, 1), tokens + 1, (rows, 1), generator=seeded)
    mask = torch.arange(tokens)[None] < length
    begins = torch.rand(rows, tokens, generator=seeded) < 1 / TURN_TOKENS
    turn = torch.where(mask, begins.cumsum(-1), -1)
    level, entropy, mask, turn = (x.to(device) for x in (level, entropy, mask, turn))
    return level, entropy, mask, turn
