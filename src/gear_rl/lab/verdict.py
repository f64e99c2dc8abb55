"""Does a method help? Every method of a comparison against the baseline, in numbers and words.

Pure: the contents of the runs' files in, a part of the findings out (docs/laboratory.md names the keys). The
final accuracy alone decides; the other numbers are shown beside it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import special, stats

from gear_rl.lab.statistics import (
    LEAST,
    LEVEL,
    Interval,
    Paired,
    mean_interval,
    median_ratio,
    paired_difference,
)

Curve = Sequence[tuple[int, float]]
"""Step and accuracy, in the order of the steps."""
_Curves = Mapping[str, Mapping[int, Curve]]
"""Method, seed, curve; finished runs only."""
_CELL: dict[str, Any] = {
    **dict.fromkeys(("task", "tier", "method"), ""), "credit": "", **dict.fromkeys(("seed", "steps"), 0),
    "n_eval": 0, "samples": 1, "accuracy_before": None, "accuracy_after": None, "accuracies_before": [],
    "accuracies_after": [], "held_out": [], "curves": {}, "seconds": None, "error": None, "rate": None,
    "outcome": "accuracy", "success_before": None, "success_after": None, "beside": {},
    "full_marks": 1.0, "rewards": None,
}  # fmt: skip
"""The keys of a cell, and their values where the file has none."""


_ADVICE = {
    "the baseline saturates": "take harder problems, or fewer steps",
    "the baseline never moves": "take more held-out problems (--n-eval) or seeds for less noise, or more steps",
    "this task cannot tell": "take more seeds, or another task",
}
"""What to do where there is no verdict on any method, by how the reason begins."""


def cell_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run's numbers as the findings hold them."""
    cell = {name: usual if row.get(name) is None else row[name] for name, usual in _CELL.items()}
    points = sorted((point["step"], point["accuracy"]) for point in cell["held_out"])
    return cell | {"held_out": [{"step": step, "accuracy": share} for step, share in points]}


def failure_of(cell: Mapping[str, Any]) -> str | None:
    """Why a cell cannot be compared; None if it can."""
    if cell["error"] is not None:
        return cell["error"]
    lacking = [name for name in ("accuracy_before", "accuracy_after") if cell[name] is None]
    return f"no number in {' and '.join(lacking)}" if lacking else None


def curve_of(cell: Mapping[str, Any]) -> Curve:
    """Held-out accuracy from before the first step to after the last; empty for a failed cell."""
    if failure_of(cell) is not None:
        return ()
    points = [(point["step"], point["accuracy"]) for point in cell["held_out"]]
    inside = [point for point in points if 0 < point[0] < cell["steps"]]
    return ((0, cell["accuracy_before"]), *inside, (cell["steps"], cell["accuracy_after"]))


def compare(
    rows: Sequence[Mapping[str, Any]], baseline: str = "uniform", ceiling: str | None = None
) -> dict[str, Any]:
    """The verdict on every method of ``rows``, runs of one task, tier and budget.

    A method is "better" or "worse" if Student's interval of its paired difference in final accuracy, corrected
    for all methods but the ``ceiling``, excludes 0. There is no verdict where the ceiling's gain is not shown,
    below 3 paired seeds, or where the baseline saturates or never moves.

    >>> row = dict(task="chain", tier="easy", steps=9, n_eval=100, accuracy_before=0.2)
    >>> ends = {"uniform": [0.60, 0.61, 0.62], "gear": [0.69, 0.72, 0.72]}
    >>> runs = [row | dict(method=m, seed=n, accuracy_after=e) for m in ends for n, e in enumerate(ends[m])]
    >>> [(v["method"], v["words"]) for v in compare(runs)["verdicts"]]
    [('uniform', 'baseline'), ('gear', 'better at 3 seeds')]
    """
    cells = [cell_of(row) for row in rows]
    runs: dict[str, dict[int, dict[str, Any]]] = {baseline: {}}  # method, seed, cell
    for cell in cells:
        runs.setdefault(cell["method"], {})[cell["seed"]] = cell
    finished = [cell for cell in cells if failure_of(cell) is None]
    one = finished[0] if finished else cells[0] | {"n_eval": None, "samples": None}
    seeds = sorted({cell["seed"] for cell in cells})
    curves = {m: {s: c for s, cell in row.items() if (c := curve_of(cell))} for m, row in runs.items()}
    found: dict[str, Any] = {
        "task": cells[0]["task"],
        "tier": cells[0]["tier"],
        "baseline": baseline,
        "steps": cells[0]["steps"],
        "n_eval": one["n_eval"],
        "samples": one["samples"],
        "outcome": cells[0]["outcome"],
        "full_marks": one["full_marks"],
        "rewards": _range([cell["rewards"] for cell in finished if cell["rewards"] is not None]),
        "level": LEVEL,
        # p is corrected for the methods that were compared with the baseline, failed ones included.
        "family": max(1, len(runs) - (1 if ceiling is None else 2)),
        "seeds": seeds,
    }
    gain = None if ceiling is None else _paired(curves[ceiling], curves[baseline], _end, found)
    problem = _baseline_problem([cell for cell in finished if cell["method"] == baseline])
    problem = problem or _ceiling_problem(gain)
    found |= {
        "baseline_problem": problem,
        "advice": next((do for why, do in _ADVICE.items() if (problem or "").startswith(why)), None),
        "ceiling": ceiling,
        "ceiling_gain": gain and gain._asdict(),
    }
    verdicts = [_verdict(method, row, curves, found, gain) for method, row in runs.items()]
    failures = [(m, s, failure_of(cell)) for m, row in runs.items() for s, cell in row.items()]
    return found | {
        "verdicts": verdicts,
        "failed": [one for one in failures if one[2] is not None],
        "missing": [(method, seed) for method, row in runs.items() for seed in seeds if seed not in row],
        "cells": cells,
    }


def area_under(curve: Curve) -> float:
    """Mean height of the line through the points of a curve.

    >>> area_under([(0, 0.0), (10, 1.0), (30, 1.0)])
    0.8333333333333334
    """
    steps, heights = zip(*curve, strict=True)
    return float(np.trapezoid(heights, steps)) / (steps[-1] - steps[0])


def budget_to(curve: Curve, accuracy: float) -> float | None:
    """The share of the curve's steps after which it first reaches ``accuracy``, on straight lines; None if never.

    >>> budget_to([(0, 0.25), (5, 0.75), (10, 0.5)], 0.5), budget_to([(0, 0.25), (10, 0.375)], 0.5)
    (0.25, None)
    """
    last, goal = curve[-1][0], accuracy - 1e-9  # a mean rounds
    if curve[0][1] >= goal:
        return 0.0
    for (step, low), (next_step, high) in pairwise(curve):
        if high >= goal:
            return (step + (next_step - step) * min(1.0, (accuracy - low) / (high - low))) / last
    return None


def _baseline_problem(cells: Sequence[Mapping[str, Any]]) -> str | None:
    """Why no method can be judged against these runs; None also if they are too few to know."""
    if len(cells) < LEAST:
        return None
    before, after = ([cell[name] for cell in cells] for name in ("accuracy_before", "accuracy_after"))
    n, start, end = cells[0]["n_eval"], math.fsum(before) / len(cells), math.fsum(after) / len(cells)
    spread = float(np.var(after, ddof=1))
    if cells[0]["outcome"] == "reward":  # of any range: only its own spread says how sure it is
        noise = math.sqrt((spread + float(np.var(before, ddof=1))) / len(cells))
        return _never_moves(start, end, noise, len(cells))
    if end >= 0.05 ** (1 / n):  # answers all problems right once in twenty times
        return f"the baseline saturates ({end:.3f}; {n} problems cannot tell that from 1)"
    # The start's noise counts once, as if all runs had drawn the same answers. Two right and two wrong answers
    # are added to it, or a start of 0 would have no noise.
    share = (start * n + 2) / (n + 4)
    return _never_moves(start, end, math.sqrt(spread / len(cells) + share * (1 - share) / n), len(cells))


def _never_moves(start: float, end: float, noise: float, num_cells: int) -> str | None:
    if end - start > float(special.stdtrit(num_cells - 1, 0.95)) * noise:
        return None
    return f"the baseline never moves ({start:.3f} before, {end:.3f} after, within noise)"


def _ceiling_problem(gain: Paired | None) -> str | None:
    """Why no method can be judged under this ceiling; None also if its seeds are too few to know."""
    if gain is None or gain.interval is None or gain.interval.low > 0:
        return None
    ends = "{:+.3f} to {:+.3f}".format(*gain.interval)
    return f"this task cannot tell (who knows the truth gains {gain.difference:+.3f}, {ends})"


def _paired(
    ours: Mapping[int, Curve],
    theirs: Mapping[int, Curve],
    of: Callable[[Curve], float],
    found: Mapping[str, Any],
    family: int = 1,
) -> Paired:
    """Ours less theirs over the seeds that both finished; the spread is one held-out problem at least."""
    seeds = sorted(ours.keys() & theirs.keys())
    a, b = ([of(curves[seed]) for seed in seeds] for curves in (ours, theirs))
    return paired_difference(a, b, family, _resolution(found))


def _resolution(found: Mapping[str, Any]) -> float:
    """What one more held-out problem would add, from the lowest reward to the highest, or to full marks."""
    low, high = found["rewards"] or (0.0, 0.0)
    marks = max(abs(found["full_marks"]), high - low) if found["outcome"] == "reward" else 1.0
    return marks / found["n_eval"] if found["n_eval"] else 0.0


def _range(ends: Sequence[Sequence[float]]) -> list[float] | None:
    return [min(low for low, _ in ends), max(high for _, high in ends)] if ends else None


def _verdict(
    method: str,
    cells: Mapping[int, dict[str, Any]],
    curves: _Curves,
    found: Mapping[str, Any],
    gain: Paired | None,
) -> dict[str, Any]:
    """One method; a number is None where too few seeds finished."""
    baseline = found["baseline"]
    ours, theirs = curves[method], curves[baseline]
    other = {} if method == baseline else ours
    family = 1 if method == found["ceiling"] else found["family"]
    final, area = (_paired(other, theirs, of, found, family) for of in (_end, area_under))
    done = [cells[seed] for seed in ours]
    ends, goal = [_end(curve) for curve in ours.values()], _mean([_end(curve) for curve in theirs.values()])
    interval = mean_interval(ends, least_spread=_resolution(found))
    spent = [] if goal is None else [budget_to(curve, goal) for curve in ours.values()]
    budgets = [] if None in spent else [value for value in spent if value is not None]
    share, share_interval = _share_of_ceiling(method, curves, found, gain) or (None, None)
    pairs = sorted(other.keys() & theirs.keys())
    kind, words = "baseline", "baseline"
    if method != baseline:
        kind, words = _in_words(final.interval, len(pairs), found["baseline_problem"])
    return {
        "method": method,
        "credit": next((cell["credit"] for cell in cells.values() if cell["credit"]), ""),
        "verdict": kind,
        "words": words,
        "seeds": sorted(ours),
        "paired_seeds": pairs,
        "failed_seeds": sorted(seed for seed in cells if seed not in ours),
        "lost_seeds": sorted(seed for seed, curve in ours.items() if _end(curve) < curve[0][1]),
        "before": _mean([curve[0][1] for curve in ours.values()]),
        "mean": _mean(ends),
        "interval": interval and _within(interval, found["outcome"]),
        "success": _mean([cell["success_after"] for cell in done if cell["success_after"] is not None]),
        "beside": _beside(done),
        "iqm": float(stats.trimboth(ends, 0.25).mean()) if ends else None,
        "difference": final.difference,
        "difference_interval": final.interval,
        "p": final.p,
        "area": _mean([area_under(curve) for curve in ours.values()]),
        "area_difference": area.difference,
        "area_difference_interval": area.interval,
        "rate": next((cell["rate"] for cell in cells.values() if cell["rate"] is not None), None),
        "share": share,
        "share_interval": share_interval,
        "budget": _mean(budgets),
        "budget_interval": (around := mean_interval(budgets)) and _within(around, "share"),
    }


def _share_of_ceiling(
    method: str, curves: _Curves, found: Mapping[str, Any], gain: Paired | None
) -> tuple[float, Interval | None] | None:
    """The median seed's share of the ceiling's gain; over the seeds that all three have."""
    if gain is None or method == found["baseline"] or gain.interval is None or gain.interval.low <= 0:
        return None
    ours, theirs, best = (curves[name] for name in (method, found["baseline"], found["ceiling"]))
    seeds = [seed for seed in theirs if seed in ours and seed in best]
    gains = [_end(ours[s]) - _end(theirs[s]) for s in seeds]
    return median_ratio(gains, [_end(best[s]) - _end(theirs[s]) for s in seeds])


def _in_words(interval: Interval | None, num_pairs: int, problem: str | None) -> tuple[str, str]:
    if interval is None:
        return "no verdict", f"no verdict: too few seeds ({num_pairs} paired, {LEAST} needed)"
    if problem is not None:
        return "no verdict", f"no verdict: {problem}"
    kind = "better" if interval.low > 0 else "worse" if interval.high < 0 else "no difference shown"
    return kind, f"{kind} at {num_pairs} seeds"


def _within(interval: Interval, outcome: str) -> Interval:
    """The interval of a share never leaves 0 to 1; that of a reward may."""
    return interval if outcome == "reward" else Interval(max(0.0, interval.low), min(1.0, interval.high))


def _beside(cells: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Means before and after over the seeds, of what is measured beside the outcome.

    >>> _beside([{"beside": {"other": [0.0, 0.5]}}, {"beside": {"other": [0.5, 1.0]}}])
    {'other': [0.25, 0.75]}
    """
    names = dict.fromkeys(name for cell in cells for name in cell["beside"])
    pairs = {name: [cell["beside"][name] for cell in cells if name in cell["beside"]] for name in names}
    return {
        name: [math.fsum(ends) / len(ends) for ends in zip(*those, strict=True)]
        for name, those in pairs.items()
    }


def _end(curve: Curve) -> float:
    return curve[-1][1]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
