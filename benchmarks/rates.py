"""``benchmarks rates``: which rule for a learning rate serves best, with how many tuning runs of each rate.

Every rule is played with every choice among the seeds that were run, and judged on the seeds that are left.
"""

# numpy and scipy are partly untyped.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Cells
from gear_rl.lab.cell_processes import run_cells
from gear_rl.lab.comparison import Plan, best_rate

RULES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda ends: float(np.mean(ends)),
    "lower quartile": lambda ends: float(np.quantile(ends, 0.25)),
    "least": min,
}
"""What of a rate's tuning runs is compared; the largest chooses the rate."""
COUNTS = (2, 3, 4)
"""Tuning runs of each rate."""


def rates(plan: Plan, tried: Sequence[float], seeds: int, folder: Path, jobs: int) -> dict[str, Any]:
    """Train every method of the plan at every rate, on tuning seeds and problems, and play the rules."""
    specs = [
        replace(spec, seed=1000 + number)
        for number in range(seeds)
        for method in plan.methods
        for spec in plan.tuning_specs(method, tried)[:: len(plan.tuning_specs(method, tried[:1]))]
    ]
    ends: dict[str, dict[float, dict[int, tuple[float, float]]]] = {}
    for spec, cell in zip(specs, run_cells(specs, folder, jobs=jobs), strict=True):
        if reached := cell.ends("accuracy"):
            ends.setdefault(spec.name, {}).setdefault(spec.rate, {})[spec.seed] = reached
    played = {
        f"{name} of {count}": {method: play(of_rate, rule, count) for method, of_rate in ends.items()}
        for name, rule in RULES.items()
        for count in COUNTS
    }
    return {"place": plan.place, "ends": ends, "rules": played}


def play(
    ends: Mapping[float, Mapping[int, tuple[float, float]]],
    rule: Callable[[Sequence[float]], float],
    count: int,
) -> dict[str, Any]:
    """Over all choices of ``count`` seeds: where the other runs end at the chosen rate, and which share is lost.

    >>> runs = {0.1: {0: (0.5, 0.7), 1: (0.5, 0.7)}, 0.2: {0: (0.5, 0.9), 1: (0.5, 0.1)}}
    >>> play(runs, min, 1)  # seed 0 chooses 0.2, seed 1 chooses 0.1
    {'end': 0.4, 'lost': 0.5, 'chosen': {'0.1': 0.5, '0.2': 0.5}}
    """
    seeds = set.intersection(*(set(of_rate) for of_rate in ends.values()))
    chosen, left, lost = list[float](), list[float](), list[float]()
    for drawn in combinations(sorted(seeds), count):
        rate = best_rate({rate: round(rule([runs[s][1] for s in drawn]), 6) for rate, runs in ends.items()})
        others = [ends[rate][seed] for seed in seeds.difference(drawn)]
        chosen.append(rate)
        left.append(float(np.mean([after for _, after in others])))
        lost.append(float(np.mean([after < before for before, after in others])))
    shares = {f"{rate:g}": round(chosen.count(rate) / len(chosen), 3) for rate in sorted(set(chosen))}
    return {"end": round(float(np.mean(left)), 4), "lost": round(float(np.mean(lost)), 4), "chosen": shares}


def rates_cells(result: Mapping[str, Any]) -> Cells:
    """The rules as a table, one column for each method."""
    methods = list(result["ends"])
    rows = [
        (rule, *(f"{one[m]['end']:.3f} ({one[m]['lost']:.1%})" for m in methods))
        for rule, one in result["rules"].items()
    ]
    title = f"{result['place']}: end of the runs that did not choose, and the share of them that is lost"
    return Cells(title, ("rule", *methods), rows, [])
