"""What each method's training step costs beside plain GRPO's."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from benchmarks.results import Cells
from benchmarks.step import BASE, bench_step

CREDIT = ("student", "teacher", "head", "credit")
"""The parts of a step that belong to the credit; what a distillation term adds to the update is none of them."""


def bench_methods(
    names: Sequence[str], *, task: str, tier: str, steps: int, repeats: int, rollouts: int, console: Console
) -> dict[str, Any]:
    """``bench_step`` of each method on the arena, with its engine settings (``engine``)."""
    rows: dict[str, Any] = {}
    result: dict[str, Any] = {}
    for name in dict.fromkeys([BASE, *names]):
        result = bench_step(
            name, task=task, tier=tier, steps=steps, repeats=repeats, rollouts=rollouts, console=console
        )
        shares = {part: row[name] for part, row in result["shares_of_grpo_step"].items()}
        rows[name] = {
            **{key: result[key] for key in ("ratio", "least", "most", "engine")},
            "credit_share": round(sum(shares[part] for part in CREDIT) / result["ratio"], 3),
            "seconds_per_step": round(result["ratio"] * result["grpo_seconds_per_step"], 4),
        }
    same = ("task", "tier", "steps", "repeats", "rollouts_per_step", "threads", "versions")
    return {
        "what": "CPU seconds of a training step over those of uniform (GRPO), median of the repeats",
        **{key: result[key] for key in same},
        "methods": rows,
    }


def methods_cells(result: Mapping[str, Any]) -> Cells:
    """The costs as a table."""
    rows: list[tuple[str, ...]] = []
    for name, row in result["methods"].items():
        ratios = (f"{row[key]:.2f}" for key in ("ratio", "least", "most"))
        rows.append((name, *ratios, f"{row['credit_share']:.0%}", f"{row['seconds_per_step']:.3f}"))
    title = f"{result['task']}/{result['tier']}, {result['rollouts_per_step']} rollouts a step"
    columns = ("method", "step / GRPO's", "least", "most", "credit pass", "seconds a step")
    return Cells(title, columns, rows, [])
