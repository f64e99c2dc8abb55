"""Does a method help? Every method of a comparison against the baseline, in numbers and words.

Pure: runs in, verdicts out. The final outcome alone decides; the other numbers are shown beside it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy import special

from gear_rl.lab.cells import Cell, Curve, Frozen, Outcome, name_at_rate
from gear_rl.lab.statistics import (
    LEAST,
    LEVEL,
    Interval,
    Paired,
    mean_interval,
    mean_ratio,
    paired_difference,
)

Kind = Literal["baseline", "better", "worse", "no difference shown", "no verdict"]
_ADVICE = {
    "the baseline saturates": "take harder problems, or fewer steps",
    "the baseline's change may be noise": "take more held-out problems (--n-eval) or seeds, or more steps",
    "the baseline ends below its start": "take a lower learning rate, or fewer steps",
    "this task cannot tell": "take more seeds, or another task",
}
"""What to do where there is no verdict on any method, by how the reason begins."""


class Verdict(Frozen):
    """What is said of one method; a number is None where too few seeds finished."""

    method: str
    credit: str
    verdict: Kind
    words: str
    seeds: tuple[int, ...]
    """Those that finished."""
    paired_seeds: tuple[int, ...]
    failed_seeds: tuple[int, ...]
    lost_seeds: tuple[int, ...]
    """Those that ended below their start."""
    before: float | None
    mean: float | None
    """Of the outcome, after the last step."""
    interval: Interval | None
    success: float | None
    beside: dict[str, tuple[float, float]]
    difference: float | None
    difference_interval: Interval | None
    at_its_rate: Paired | None
    """To the baseline at the method's rate; None where that is the baseline's own or was not run."""
    rate: float | None
    share: float | None
    """Of the ceiling's mean gain."""
    share_interval: Interval | None
    budget: float | None
    """Share of the run's steps after which the baseline's mean end is reached, where every seed reaches it."""
    budget_interval: Interval | None


class Comparison(Frozen):
    """The verdicts on all methods of a task, tier and budget, with the runs that they rest on."""

    task: str
    tier: str
    baseline: str
    ceiling: str | None
    outcome: Outcome
    steps: int
    n_eval: int
    samples: int
    full_marks: float
    rewards: tuple[float, float] | None
    level: float = LEVEL
    family: int
    """Methods compared with the baseline, failed ones included: intervals are corrected for them."""
    seeds: tuple[int, ...]
    baseline_problem: str | None
    """Why there is no verdict on any method."""
    advice: str | None
    ceiling_gain: Paired | None
    verdicts: tuple[Verdict, ...]
    failed: tuple[tuple[str, int, str], ...]
    """Method, seed and reason."""
    missing: tuple[tuple[str, int], ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The runs of all methods and what they have in common."""

    cells: Mapping[str, Mapping[int, Cell]]
    """Method, seed."""
    baseline: str
    ceiling: str | None
    outcome: Outcome
    resolution: float
    """What one more held-out problem would add, from the lowest reward to the highest, or to full marks."""

    @property
    def family(self) -> int:
        """Methods that are compared with the baseline; 1 at least."""
        return max(1, sum(not self.is_baseline(name) and name != self.ceiling for name in self.cells))

    @property
    def failed(self) -> tuple[tuple[str, int, str], ...]:
        """Method, seed and reason."""
        cells = [(name, seed, cell) for name, row in self.cells.items() for seed, cell in row.items()]
        return tuple((name, seed, cell.error) for name, seed, cell in cells if cell.error is not None)

    def curves(self, method: str) -> dict[int, Curve]:
        """Of the seeds that finished."""
        return {s: curve for s, cell in self.cells[method].items() if (curve := cell.curve(self.outcome))}

    def is_baseline(self, method: str) -> bool:
        """Also at another rate than its own."""
        return method.partition("@")[0] == self.baseline

    def lost(self, method: str) -> tuple[int, ...]:
        """Seeds that ended below their start."""
        return tuple(sorted(s for s, curve in self.curves(method).items() if _end(curve) < curve[0][1]))

    def rate(self, method: str) -> float | None:
        return next((cell.rate for cell in self.cells[method].values() if cell.rate is not None), None)

    def paired(self, method: str, against: str) -> Paired:
        """The end of the method less another's over the seeds of both; the ceiling's is not corrected."""
        ours, theirs = self.curves(method), self.curves(against)
        seeds = [] if self.is_baseline(method) else sorted(ours.keys() & theirs.keys())
        a, b = ([_end(curves[seed]) for seed in seeds] for curves in (ours, theirs))
        return paired_difference(a, b, 1 if method == self.ceiling else self.family, self.resolution)

    def baseline_at_its_rate(self, method: str) -> str:
        """The name of the baseline's runs at the method's rate."""
        rate, own = self.rate(method), self.rate(self.baseline)
        if rate is None or rate == own or method == self.ceiling:
            return self.baseline
        return name_at_rate(self.baseline, rate)

    def at_its_rate(self, method: str) -> Paired | None:
        """The difference to the baseline at the method's rate; None where that was not run."""
        against = self.baseline_at_its_rate(method)
        return self.paired(method, against) if against in self.cells else None


def compare(
    cells: Sequence[Cell],
    *,
    baseline: str = "uniform",
    ceiling: str | None = None,
    outcome: Outcome = "accuracy",
) -> Comparison:
    """The verdict on every method of ``cells``, runs of one task, tier and budget.

    A method is "better" or "worse" if two intervals of Student's exclude 0 on the same side, corrected for all
    methods but the ``ceiling``: of its paired difference in the final outcome to the baseline at the baseline's
    rate, and at the method's (``name_at_rate``), since few runs chose them. There is no verdict where the
    ceiling's gain is not shown, below 3 paired seeds, where a seed of either failed, or where the baseline
    saturates, may not move or falls.

    >>> ends = {"uniform": [0.60, 0.61, 0.62], "gear": [0.69, 0.72, 0.72]}
    >>> row = dict(task="chain", tier="easy", steps=9, n_eval=100, before=dict(step=0, rewards=[0.2]))
    >>> runs = [Cell(**row, method=method, seed=seed, after=dict(step=9, rewards=[end]))
    ...         for method, each in ends.items() for seed, end in enumerate(each)]
    >>> [(verdict.method, verdict.words) for verdict in compare(runs).verdicts]
    [('uniform', 'baseline'), ('gear', 'better at 3 seeds')]
    """
    finished = [cell for cell in cells if cell.error is None]
    first = (finished or cells)[0]
    rewards = _range_of_rewards(finished)
    low, high = rewards or (0.0, 0.0)
    marks = max(abs(first.full_marks), high - low) if outcome == "reward" else 1.0
    runs = _Runs(
        cells=_by_method(cells, baseline),
        baseline=baseline,
        ceiling=ceiling,
        outcome=outcome,
        resolution=marks / first.n_eval,
    )
    gain = None if ceiling is None else runs.paired(ceiling, baseline)
    problem = _baseline_problem([cell for cell in finished if cell.method == baseline], outcome, rewards)
    problem = problem or _ceiling_problem(gain)
    seeds = sorted({cell.seed for cell in cells})
    return Comparison(
        task=first.task,
        tier=first.tier,
        baseline=baseline,
        ceiling=ceiling,
        outcome=outcome,
        steps=first.steps,
        n_eval=first.n_eval,
        samples=first.samples,
        full_marks=first.full_marks,
        rewards=rewards,
        family=runs.family,
        seeds=tuple(seeds),
        baseline_problem=problem,
        advice=next((do for why, do in _ADVICE.items() if (problem or "").startswith(why)), None),
        ceiling_gain=gain,
        verdicts=tuple(_verdict(method, runs, gain, problem) for method in runs.cells),
        failed=runs.failed,
        missing=tuple((name, seed) for name, row in runs.cells.items() for seed in seeds if seed not in row),
        cells=tuple(cells),
    )


def _range_of_rewards(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """The lowest and the highest held-out reward."""
    ranges = [cell.rewards for cell in cells if cell.rewards is not None]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def _by_method(cells: Sequence[Cell], baseline: str) -> dict[str, dict[int, Cell]]:
    by_method: dict[str, dict[int, Cell]] = {baseline: {}}
    for cell in cells:
        by_method.setdefault(cell.method, {})[cell.seed] = cell
    return by_method


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


def _baseline_problem(
    cells: Sequence[Cell], outcome: Outcome, rewards: tuple[float, float] | None
) -> str | None:
    """Why no method can be judged against these runs; None also if they are too few to know.

    ``rewards`` are the lowest and the highest of all methods.
    """
    if len(cells) < LEAST:
        return None
    before, after = zip(*[ends for cell in cells if (ends := cell.ends(outcome))], strict=True)
    n, start, end = cells[0].n_eval, math.fsum(before) / len(cells), math.fsum(after) / len(cells)
    spread, success = float(np.var(after, ddof=1)), end
    if outcome == "reward":
        shares = [cell.after.value("success") for cell in cells if cell.after and cell.after.successes]
        may_grow = rewards is None or rewards[1] > cells[0].full_marks
        success = 0.0 if may_grow else _mean(shares) or 0.0
    if success >= 0.05 ** (1 / n):  # answers all problems right once in twenty times
        return f"the baseline saturates ({success:.3f}; {n} problems cannot tell that from 1)"
    if outcome == "reward":  # of any range: only its own spread says how sure it is
        noise = math.sqrt((spread + float(np.var(before, ddof=1))) / len(cells))
        return _never_moves(start, end, noise, len(cells))
    # The start's noise counts once, as if all runs had drawn the same answers. Two right and two wrong answers
    # are added to it, or a start of 0 would have no noise.
    share = (start * n + 2) / (n + 4)
    return _never_moves(start, end, math.sqrt(spread / len(cells) + share * (1 - share) / n), len(cells))


def _never_moves(start: float, end: float, noise: float, num_cells: int) -> str | None:
    bound = float(special.stdtrit(num_cells - 1, 0.95)) * noise
    if end - start > bound:
        return None
    why = "the baseline ends below its start" if start - end > bound else "the baseline's change may be noise"
    return f"{why} ({start:.3f} before, {end:.3f} after)"


def _ceiling_problem(gain: Paired | None) -> str | None:
    """Why no method can be judged under this ceiling; None also if its seeds are too few to know."""
    if gain is None or gain.interval is None or gain.interval.low > 0:
        return None
    ends = "{:+.3f} to {:+.3f}".format(*gain.interval)
    return f"this task cannot tell (who knows the truth gains {gain.difference:+.3f}, {ends})"


def _verdict(method: str, runs: _Runs, gain: Paired | None, problem: str | None) -> Verdict:
    cells, curves, theirs = runs.cells[method], runs.curves(method), runs.curves(runs.baseline)
    final = runs.paired(method, runs.baseline)
    same = runs.at_its_rate(method)
    done = [cells[seed] for seed in curves]
    ends, goal = [_end(curve) for curve in curves.values()], _mean([_end(curve) for curve in theirs.values()])
    interval = mean_interval(ends, least_spread=runs.resolution)
    spent = [] if goal is None else [budget_to(curve, goal) for curve in curves.values()]
    budgets = [] if None in spent else [value for value in spent if value is not None]
    share, share_interval = _share_of_ceiling(method, runs, gain) or (None, None)
    kind, words = _in_words(method, runs, final, same, problem)
    return Verdict(
        method=method,
        credit=next((cell.credit for cell in cells.values() if cell.credit), ""),
        verdict=kind,
        words=words,
        seeds=tuple(sorted(curves)),
        paired_seeds=() if runs.is_baseline(method) else tuple(sorted(curves.keys() & theirs.keys())),
        failed_seeds=tuple(sorted(seed for seed in cells if seed not in curves)),
        lost_seeds=runs.lost(method),
        before=_mean([curve[0][1] for curve in curves.values()]),
        mean=_mean(ends),
        interval=interval if runs.outcome == "reward" else _within_0_and_1(interval),
        success=_mean([cell.after.value("success") for cell in done if cell.after and cell.after.successes]),
        beside=_means_beside(done),
        difference=final.difference,
        difference_interval=final.interval,
        at_its_rate=None if same == final else same,
        rate=runs.rate(method),
        share=share,
        share_interval=share_interval,
        budget=_mean(budgets),
        budget_interval=_within_0_and_1(mean_interval(budgets)),
    )


def _share_of_ceiling(method: str, runs: _Runs, gain: Paired | None) -> tuple[float, Interval | None] | None:
    """The mean gain over the ceiling's; over the seeds that all three have."""
    if gain is None or runs.ceiling is None or runs.is_baseline(method):
        return None
    if gain.interval is None or gain.interval.low <= 0:
        return None
    ours, theirs, best = (runs.curves(name) for name in (method, runs.baseline, runs.ceiling))
    seeds = [seed for seed in theirs if seed in ours and seed in best]
    gains, most = ([_end(curves[s]) - _end(theirs[s]) for s in seeds] for curves in (ours, best))
    return mean_ratio(gains, most) if len(seeds) >= LEAST else None


def _in_words(
    method: str, runs: _Runs, own: Paired, same: Paired | None, problem: str | None
) -> tuple[Kind, str]:
    if runs.is_baseline(method):
        return "baseline", "baseline" if method == runs.baseline else "baseline at the rate of others"
    if own.interval is None:
        return "no verdict", f"no verdict: too few seeds ({own.num_pairs} paired, {LEAST} needed)"
    if problem is not None:
        return "no verdict", f"no verdict: {problem}"
    kind: Kind = (
        "better" if own.interval.low > 0 else "worse" if own.interval.high < 0 else "no difference shown"
    )
    if kind != "no difference shown":
        if same is None or same.interval is None:
            why = f"{runs.baseline} was not run at its rate ({runs.rate(method):g})"
            if same is not None:
                paired = f"{same.num_pairs} paired with {runs.baseline} at the method's rate"
                why = f"too few seeds ({paired}, {LEAST} needed)"
            return "no verdict", f"no verdict: {why}"
        if (same.interval.low <= 0) if kind == "better" else (same.interval.high >= 0):
            kind = "no difference shown"
    if kind != "no difference shown":  # the seeds that are left would speak for those that diverged
        sides = {method, runs.baseline, runs.baseline_at_its_rate(method)}
        seeds = {seed for name in sides for seed in runs.cells[name]}
        failed = {seed for name, seed, _ in runs.failed if name in sides}
        if failed:
            return "no verdict", f"no verdict: {len(failed)} of {len(seeds)} seeds failed"
    lost = len(runs.lost(runs.baseline))
    return kind, f"{kind} at {own.num_pairs} seeds" + (f"; {runs.baseline} lost {lost}" if lost else "")


def _within_0_and_1(interval: Interval | None) -> Interval | None:
    return interval and Interval(max(0.0, interval.low), min(1.0, interval.high))


def _means_beside(cells: Sequence[Cell]) -> dict[str, tuple[float, float]]:
    """Means before and after over the seeds, of what is measured beside the outcome."""
    means: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(name for cell in cells for name in cell.beside):
        before, after = zip(*[cell.beside[name] for cell in cells if name in cell.beside], strict=True)
        means[name] = math.fsum(before) / len(before), math.fsum(after) / len(after)
    return means


def _end(curve: Curve) -> float:
    return curve[-1][1]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
