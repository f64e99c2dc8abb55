"""Does a method help? Every method of a comparison against the baseline, in numbers and words. Pure: reads cells.

The final accuracy alone decides; the other numbers are shown beside it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from scipy import special, stats

from gear_rl.lab.cells import Cell, Curve
from gear_rl.lab.statistics import (
    LEAST,
    LEVEL,
    Interval,
    Paired,
    mean_interval,
    paired_difference,
    ratio_interval,
)

Kind = Literal["baseline", "better", "worse", "no difference shown", "no verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One method of a comparison. None where too few seeds finished to have the number."""

    method: str
    credit: str
    verdict: Kind
    words: str
    """The verdict with its number of seeds, or why there is none."""
    seeds: list[int]
    """Seeds that finished; everything but the differences is over these."""
    paired_seeds: list[int]
    """Seeds that finished here and in the baseline; the differences are over these."""
    failed_seeds: list[int]
    lost_seeds: list[int]
    """Seeds that finished below their own start."""
    mean: float | None
    """Of the final accuracies."""
    interval: Interval | None
    """Of that mean, for itself: not corrected for the number of methods."""
    iqm: float | None
    """Interquartile mean of the final accuracies (Agarwal et al. 2021, arXiv:2108.13264)."""
    difference: float | None
    """Mean of the final accuracy minus the baseline's of the same seed."""
    difference_interval: Interval | None
    """The intervals of all methods hold together at the level of the comparison."""
    p: float | None
    """Of the difference, two-sided, corrected for the number of methods."""
    area: float | None
    """Mean accuracy over the steps of the run (area under the held-out curve)."""
    area_difference: float | None
    area_difference_interval: Interval | None
    rate: float | None
    """Learning rate of the runs."""
    share: float | None
    """Of what the ceiling gains: (this method - baseline) / (ceiling - baseline), of the mean final accuracies;
    None where no ceiling is shown to be above the baseline."""
    share_interval: Interval | None
    """Fieller's, for itself: not corrected for the number of methods."""
    budget: float | None
    """Share of the baseline's rollouts after which its mean final accuracy is reached, on straight lines between
    the evaluations: mean over the seeds. None where a seed never gets there."""
    budget_interval: Interval | None
    """Of that mean, for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every method of one task and tier against the baseline."""

    task: str
    tier: str
    baseline: str
    steps: int
    n_eval: int | None
    """Held-out problems per run; None if no run finished."""
    samples: int | None
    """Sampled answers to each of them; None if no run finished."""
    level: float
    family: int
    """Methods that were compared with the baseline, failed ones included; what p is corrected for."""
    seeds: list[int]
    """Every seed that any method was run with."""
    baseline_problem: str | None
    """Why there is no verdict at all; None if there is."""
    ceiling: str | None
    """The method that is told the truth, a reference and no bound; None where there is none."""
    ceiling_gain: Paired | None
    """Ceiling minus baseline, in final accuracy; its interval is for itself."""
    verdicts: list[Verdict]
    """The baseline first, the others in the order of the cells."""
    failed: list[tuple[str, int, str]]
    """Method, seed and reason of every cell that failed."""
    missing: list[tuple[str, int]]
    """Method and seed of every run that other methods have and this one has not."""


def compare(
    cells: Sequence[Cell], baseline: str = "uniform", level: float = LEVEL, ceiling: str | None = None
) -> Comparison:
    """The verdict on every method of ``cells``, all of one task, tier and budget.

    A method is "better" or "worse" if the interval of its paired difference in final accuracy excludes 0; the
    intervals are Student's, corrected over all methods together. ``ceiling`` is the method that knows the truth:
    it is no part of the correction, and where its gain is not shown to be above 0, there is no verdict. Nor is
    there one below 3 paired seeds, where the baseline saturates, or where it never moves (docs/laboratory.md).
    Failed runs are left out and listed. ``ValueError`` for cells that cannot be compared.

    >>> row = dict(task="chain", tier="easy", steps=9, n_eval=100)
    >>> def run(method, seed, end):
    ...     more = {"method": method, "seed": seed, "accuracy_before": 0.2, "accuracy_after": end}
    ...     return Cell.from_dict({**row, **more})
    >>> ends = {"uniform": [0.60, 0.61, 0.62], "gear": [0.69, 0.72, 0.72]}
    >>> result = compare([run(m, seed, end) for m in ends for seed, end in enumerate(ends[m])])
    >>> [(v.method, v.words) for v in result.verdicts]
    [('uniform', 'baseline'), ('gear', 'better at 3 seeds')]
    """
    runs = _by_method(cells, baseline)
    finished = [cell for cell in cells if cell.failure is None]
    n_eval, samples = _one(finished, "n_eval"), _one(finished, "samples")
    seeds = sorted({seed for row in runs.values() for seed in row})
    curves = {m: {s: cell.curve for s, cell in row.items() if cell.curve} for m, row in runs.items()}
    resolution = 1 / n_eval if n_eval else 0.0
    gain = None if ceiling is None else _gain(curves[ceiling], curves[baseline], level, resolution)
    problem = _baseline_problem([cell for cell in runs[baseline].values() if cell.failure is None])
    given = _Given(
        curves=curves,
        baseline=baseline,
        ceiling=ceiling,
        gain=gain,
        level=level,
        family=max(1, len(runs) - (1 if ceiling is None else 2)),
        resolution=resolution,
        problem=problem or _ceiling_problem(gain),
    )
    return Comparison(
        task=cells[0].task,
        tier=cells[0].tier,
        baseline=baseline,
        steps=cells[0].steps,
        n_eval=n_eval,
        samples=samples,
        level=level,
        family=given.family,
        seeds=seeds,
        baseline_problem=given.problem,
        ceiling=ceiling,
        ceiling_gain=gain,
        verdicts=[_verdict(method, list(row.values()), seeds, given) for method, row in runs.items()],
        failed=[
            (m, s, c.failure) for m, row in runs.items() for s, c in row.items() if c.failure is not None
        ],
        missing=[(method, seed) for method, row in runs.items() for seed in seeds if seed not in row],
    )


def area_under(curve: Curve) -> float:
    """Mean height of the line through the points of a curve, in the order of the steps.

    >>> area_under([(0, 0.0), (10, 1.0), (30, 1.0)])
    0.8333333333333334
    """
    steps, heights = zip(*curve, strict=True)
    return float(np.trapezoid(heights, steps)) / (steps[-1] - steps[0])


def budget_to(curve: Curve, accuracy: float) -> float | None:
    """The share of the curve's steps after which it first has ``accuracy``, on straight lines; None if never.

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


def _by_method(cells: Sequence[Cell], baseline: str) -> dict[str, dict[int, Cell]]:
    for name in ("task", "tier", "steps"):
        _one(cells, name)
    runs: dict[str, dict[int, Cell]] = {baseline: {}}
    for cell in cells:
        row = runs.setdefault(cell.method, {})
        if cell.seed in row:
            raise ValueError(f"method {cell.method!r}, seed {cell.seed}: there are two cells; remove one")
        row[cell.seed] = cell
    if not runs[baseline]:
        raise ValueError(
            f"baseline: no cell of {baseline!r}; the methods are {', '.join(list(runs)[1:]) or 'none'}"
        )
    for method, row in runs.items():
        credits = {cell.credit for cell in row.values() if cell.credit}
        if len(credits) > 1:
            raise ValueError(f"method {method!r} has cells of {sorted(credits)}; give each its own name")
    return runs


def _one(cells: Sequence[Cell], name: str) -> int | None:
    """The value that all cells have; None without any."""
    values = {getattr(cell, name) for cell in cells}
    if len(values) > 1:
        raise ValueError(f"{name}: cells of {sorted(values)} in one comparison; compare equal runs only")
    return next(iter(values), None)


def _baseline_problem(cells: list[Cell]) -> str | None:
    """Why no method can be judged against these runs; None also if they are too few to say."""
    if len(cells) < LEAST:
        return None
    before, after = [cell.curve[0][1] for cell in cells], [_end(cell.curve) for cell in cells]
    n, start, end = cells[0].n_eval, math.fsum(before) / len(cells), math.fsum(after) / len(cells)
    if end >= 0.05 ** (1 / n):  # answers all problems right once in twenty times
        return f"the baseline saturates ({end:.3f}; {n} problems cannot tell that from 1)"
    # The luck of the start counts once, as if all runs had drawn the same one answer to each problem. Two right
    # and two wrong answers are added to it, or a start of 0 would have no noise.
    share = (start * n + 2) / (n + 4)
    noise = math.sqrt(float(np.var(after, ddof=1)) / len(cells) + share * (1 - share) / n)
    if end - start <= float(special.stdtrit(len(cells) - 1, 0.95)) * noise:
        return f"the baseline never moves ({start:.3f} before, {end:.3f} after, within noise)"
    return None


def _gain(ours: Mapping[int, Curve], theirs: Mapping[int, Curve], level: float, resolution: float) -> Paired:
    """What the ceiling gains in final accuracy."""
    pairs = [seed for seed in ours if seed in theirs]
    ends = [_end(ours[seed]) for seed in pairs], [_end(theirs[seed]) for seed in pairs]
    return paired_difference(*ends, level, least_spread=resolution)


def _ceiling_problem(gain: Paired | None) -> str | None:
    """Why no method can be judged under this ceiling; None also if its seeds are too few to say."""
    if gain is None or gain.interval is None or gain.interval.low > 0:
        return None
    low, high = gain.interval
    return (
        f"this task cannot tell (who knows the truth gains {gain.difference:+.3f}, {low:+.3f} to {high:+.3f})"
    )


class _Given(NamedTuple):
    """What the verdicts of a comparison share."""

    curves: Mapping[str, Mapping[int, Curve]]
    """Method, seed, curve; finished runs only."""
    baseline: str
    ceiling: str | None
    gain: Paired | None
    level: float
    family: int
    resolution: float
    """One held-out problem, as a share."""
    problem: str | None


def _verdict(method: str, cells: list[Cell], seeds: list[int], given: _Given) -> Verdict:
    ours, theirs = given.curves[method], given.curves[given.baseline]
    other = method != given.baseline
    pairs = [seed for seed in seeds if seed in ours and seed in theirs] if other else []
    family = 1 if method == given.ceiling else given.family

    def paired(of: Callable[[Curve], float]) -> Paired:
        values = [of(ours[seed]) for seed in pairs], [of(theirs[seed]) for seed in pairs]
        return paired_difference(*values, given.level, family, given.resolution)

    final, area = paired(_end), paired(area_under)
    ends, goal = [_end(c) for c in ours.values()], _mean([_end(c) for c in theirs.values()])
    interval = mean_interval(ends, given.level, given.resolution)
    share, share_interval = _share_of_ceiling(method, given) or (None, None)
    spent = [] if goal is None else [budget_to(curve, goal) for curve in ours.values()]
    budgets = [value for value in spent if value is not None]
    budgets = budgets if len(budgets) == len(spent) else []
    verdict, words = ("baseline", "baseline")
    if other:
        verdict, words = _in_words(final.interval, len(pairs), given.problem)
    return Verdict(
        method=method,
        credit=next((cell.credit for cell in cells if cell.credit), ""),
        verdict=verdict,
        words=words,
        seeds=sorted(ours),
        paired_seeds=pairs,
        failed_seeds=sorted(cell.seed for cell in cells if cell.seed not in ours),
        lost_seeds=sorted(seed for seed, curve in ours.items() if _end(curve) < curve[0][1]),
        mean=_mean(ends),
        interval=None if interval is None else Interval(max(0.0, interval.low), min(1.0, interval.high)),
        iqm=float(stats.trimboth(ends, 0.25).mean()) if ends else None,
        difference=final.difference,
        difference_interval=final.interval,
        p=final.p,
        area=_mean([area_under(curve) for curve in ours.values()]),
        area_difference=area.difference,
        area_difference_interval=area.interval,
        rate=next((cell.rate for cell in cells if cell.rate is not None), None),
        share=share,
        share_interval=share_interval,
        budget=_mean(budgets),
        budget_interval=mean_interval(budgets, given.level),
    )


def _share_of_ceiling(method: str, given: _Given) -> tuple[float, Interval] | None:
    """How much of what there is to gain the method gains; over the seeds that all three have."""
    if given.ceiling is None or given.gain is None or method == given.baseline:
        return None
    if given.gain.interval is None or given.gain.interval.low <= 0:
        return None
    ours, theirs, best = (given.curves[name] for name in (method, given.baseline, given.ceiling))
    seeds = [seed for seed in theirs if seed in ours and seed in best]
    gains = [_end(ours[s]) - _end(theirs[s]) for s in seeds]
    return ratio_interval(gains, [_end(best[s]) - _end(theirs[s]) for s in seeds], given.level)


def _in_words(interval: Interval | None, num_pairs: int, problem: str | None) -> tuple[Kind, str]:
    if interval is None:
        return "no verdict", f"no verdict: too few seeds ({num_pairs} paired, {LEAST} needed)"
    if problem is not None:
        return "no verdict", f"no verdict: {problem}"
    if interval.low > 0:
        return "better", f"better at {num_pairs} seeds"
    if interval.high < 0:
        return "worse", f"worse at {num_pairs} seeds"
    return "no difference shown", f"no difference shown at {num_pairs} seeds"


def _end(curve: Curve) -> float:
    return curve[-1][1]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
