"""``benchmarks coverage``: how often the laboratory's intervals hold, and how often it claims what is not there.

Nothing is trained: ends of runs are simulated, or drawn from GRPO's own runs at several rates.
"""

# scipy brings no types.

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from benchmarks.results import Cells
from gear_rl.lab.statistics import LEVEL, mean_ratio

Scenario = tuple[float, float, float]
"""The share of the oracle's gain where no run is lost; the chance of a loss with GRPO, and with the method."""
SCENARIOS: list[Scenario] = [
    (0.3, 0.0, 0.0),
    (0.8, 0.0, 0.0),
    (0.8, 0.1, 0.0),
    (0.8, 0.0, 0.1),
    (0.8, 0.1, 0.1),
]
SPREAD, NARROW = 0.05, 0.03
"""Standard deviations of the ends over seeds: of a method on ``codebook`` hard, and of GRPO."""
LOSS = 0.1
"""Chance that a run is lost."""
SAMPLES, MANY = 4000, 200_000
"""Comparisons that are simulated, and seeds for a true value."""
RATIOS = 400
"""Comparisons with a bootstrap each."""


def gains(rng: Any, size: tuple[int, int], scenario: Scenario) -> tuple[Any, Any]:
    """Gains of the method and of the oracle over GRPO; a lost run ends at .3 to .5."""
    share, *chances = scenario
    # Half of the variance is the seed's.
    luck = math.sqrt(0.5) * (rng.normal(size=(3, *size)) + rng.normal(size=size))
    ends = np.stack([0.73 + SPREAD * luck[0], 0.73 + 0.24 * share + SPREAD * luck[1]])
    lost = rng.random((2, *size)) < np.reshape(chances, (2, 1, 1))
    base, ours = np.where(lost, rng.uniform(0.3, 0.5, (2, *size)), ends)
    return ours - base, 0.97 + 0.01 * luck[2] - base


def student(x: Any, family: int = 1) -> tuple[Any, Any]:
    """The ends of Student's interval of each row's mean, corrected for a family."""
    n = x.shape[-1]
    error = np.maximum(x.std(-1, ddof=1), 1 / 256) / math.sqrt(n)
    reach = special.stdtrit(n - 1, 1 - (1 - LEVEL) / 2 / family) * error
    return x.mean(-1) - reach, x.mean(-1) + reach


def grpo_ends(file: Path) -> Any:
    """Where GRPO's runs of ``benchmarks rates`` ended: a row for each rate."""
    runs: dict[str, dict[str, list[float]]] = json.loads(file.read_text(encoding="utf-8"))["ends"]["uniform"]
    return np.asarray([[after for _, after in seeds.values()] for seeds in runs.values()])


def false_claims(ends: Any, *, tuning: int, seeds: int, both: bool, methods: int = 3) -> float:
    """How often some method is called better or worse, where every method is GRPO by another name.

    All draw ``tuning`` runs of each rate, take the best, and draw the reported ``seeds``. With ``both`` a claim
    holds against GRPO at the method's rate too.
    """
    rng, (rates, runs) = np.random.default_rng(0), ends.shape
    tuned = ends[np.arange(rates)[:, None], rng.integers(runs, size=(SAMPLES, methods + 1, rates, tuning))]
    chosen = tuned.mean(-1).argmax(-1)
    drawn = ends[chosen[..., None], rng.integers(runs, size=(SAMPLES, methods + 1, seeds))]
    base, *ours = np.moveaxis(drawn, 1, 0)
    claimed = np.zeros(SAMPLES, dtype=bool)
    for number, own in enumerate(ours, 1):
        same = ends[chosen[:, [number]], rng.integers(runs, size=(SAMPLES, seeds))]
        same = np.where(chosen[:, [number]] == chosen[:, [0]], base, same) if both else base
        intervals = [student(own - other, methods) for other in (base, same)]
        claimed |= np.all([low > 0 for low, _ in intervals], 0) | np.all(
            [high < 0 for _, high in intervals], 0
        )
    return float(claimed.mean())


def mean_where_runs_are_lost(seeds: int) -> dict[str, float]:
    """How often the interval of a mean holds; and, with GRPO's losses, how often a method that loses none and has
    the same mean is called worse, and better.
    """
    rng = np.random.default_rng(0)
    lost = rng.random((SAMPLES, seeds)) < LOSS
    ends = np.where(lost, rng.uniform(0.3, 0.5, lost.shape), rng.normal(0.73, NARROW, lost.shape))
    true = (1 - LOSS) * 0.73 + LOSS * 0.4
    low, high = student(ends)
    least, most = student(rng.normal(true, NARROW, lost.shape) - ends)
    return {
        "coverage": float(((low <= true) & (true <= high)).mean()),
        "worse": float((most < 0).mean()),
        "better": float((least > 0).mean()),
    }


def share_coverage(seeds: int, scenario: Scenario) -> float:
    """How often the interval of the share of the oracle's gain holds."""
    ours, oracle = gains(np.random.default_rng(1), (MANY, 1), scenario)
    true, held = float(ours.mean() / oracle.mean()), 0
    for parts, wholes in zip(*gains(np.random.default_rng(0), (RATIOS, seeds), scenario), strict=True):
        _, ends = mean_ratio(parts.tolist(), wholes.tolist())
        held += ends is not None and ends.low <= true <= ends.high
    return held / RATIOS


def coverage(say: Callable[[str], None], file: Path) -> dict[str, Any]:
    """All of it, GRPO's runs from the file of ``benchmarks rates``."""
    ends, claims, means, shares = grpo_ends(file), list[Any](), list[Any](), list[Any]()
    for tuning in (2, 4):
        for seeds in (5, 10):
            say(f"false claims, {tuning} tuning runs, {seeds} seeds")
            row: dict[str, float] = {"tuning": tuning, "seeds": seeds}
            for name, both in (("own_rate", False), ("both_rates", True)):
                row[name] = round(false_claims(ends, tuning=tuning, seeds=seeds, both=both), 3)
            claims.append(row)
    for seeds in (3, 5, 10):
        row = mean_where_runs_are_lost(seeds)
        means.append({"seeds": seeds} | {name: round(value, 3) for name, value in row.items()})
    for scenario in SCENARIOS:
        say(f"share, {scenario}")
        shares.append({"share_and_losses": scenario, "coverage": round(share_coverage(10, scenario), 3)})
    return {"level": LEVEL, "loss": LOSS, "claims": claims, "means": means, "shares": shares}


def coverage_cells(result: Mapping[str, Any]) -> Cells:
    """False claims as a table, the other figures below."""
    rows = [
        (
            f"{row['tuning']} tuning runs, {row['seeds']} seeds",
            f"{row['own_rate']:.1%}",
            f"{row['both_rates']:.1%}",
        )
        for row in result["claims"]
    ]
    loss, means = f"{result['loss']:.0%}", result["means"]
    held = ", ".join(f"{row['coverage']:.0%} at {row['seeds']}" for row in means)
    worse = ", ".join(f"{row['worse']:.0%} at {row['seeds']}" for row in means)
    shares = [(f"{row['coverage']:.0%}", *row["share_and_losses"]) for row in result["shares"]]
    below = [
        f"Where {loss} of the runs are lost, Student's interval of a mean holds in {held} seeds.",
        f"Where GRPO loses {loss}, a method with its mean that loses none is called worse in {worse} seeds.",
        "The share's interval holds at ten seeds in "
        + ", ".join("{} (share {}, {:.0%} lost by GRPO, {:.0%} by the method)".format(*row) for row in shares)
        + ".",
    ]
    columns = ("every method is GRPO: some claim", "against GRPO at its own rate", "at both rates")
    return Cells("Claims of a difference where there is none, three methods", columns, rows, below)
