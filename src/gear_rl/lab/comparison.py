"""A comparison: every method at its own best rate, over seeds, resumed where it was interrupted."""

# pyright: reportMissingTypeStubs=false

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from gear_rl.arena.task import get_task
from gear_rl.errors import InputError
from gear_rl.files import without_secrets
from gear_rl.lab.cell_processes import run_cells
from gear_rl.lab.cells import Cell, Outcome, name_at_rate, outcome_of
from gear_rl.lab.findings import Findings
from gear_rl.lab.lineup import BASELINE, CEILING, SFT, line_up
from gear_rl.lab.spec import Spec, digest_of_folder, finished_cell
from gear_rl.lab.verdict import compare
from gear_rl.method_builder import build_method
from gear_rl.runs.arena import task_of
from gear_rl.user_objects import code_of

TUNING_SEEDS = (1000, 1001, 1002, 1003)
"""Seeds of the runs that a learning rate is chosen by; no report has them."""
RATE_FACTOR = 2.0
"""Between neighbours of the grid."""
MOST_WIDENINGS = 3
"""Steps by which the grid is widened on either side before the best rate is left at its edge."""


def reported_part(held_out: range, rates: int) -> range:
    """The held-out problems that reports are made on: the first three quarters where the others tune rates.

    >>> reported_part(range(1024), 4), reported_part(range(1024), 1)
    (range(0, 768), range(0, 1024))
    """
    return held_out[: 3 * len(held_out) // 4] if rates > 1 else held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of a comparison."""

    methods: dict[str, dict[str, Any]]
    """The names they are compared under, and their settings; the baseline first, then the ceiling if any."""
    engine: dict[str, dict[str, Any]]
    """The engine settings of each method: its own, and those given instead."""
    own: dict[str, dict[str, Any]]
    """``rollouts`` of a step and share of ``sft`` of the methods that have their own."""
    ceiling: str | None
    task: str
    tier: str
    """With ``run``, ``task`` and ``tier`` are its dataset and model."""
    held_out: range
    """Seeds of the task's held-out problems, or numbers of the user's held-out rows."""
    seeds: int
    steps: int
    rollouts: int
    """Per step."""
    rate: float
    """The tier's own learning rate."""
    rates: int
    """Rates tried for each method at first; 1 for the tier's own and no search."""
    n_eval: int
    samples: int
    run: dict[str, Any] | None = None
    """The user's own run, in place of a task of the arena."""
    outcome: Outcome | None = None
    """Of the user's own run; None: the reward where the runs at hand have graded ones, else the share right."""

    @property
    def place(self) -> str:
        """Task and tier, or the user's model and dataset, in words."""
        return f"{self.task}/{self.tier}" if self.run is None else f"{self.tier} on {self.task}"

    def tuning_specs(self, method: str, rates: Iterable[float]) -> list[Spec]:
        """The runs that find the method's best rate: on seeds and problems that are never reported."""
        problems = self.held_out[len(reported_part(self.held_out, rates=2)) :]
        return [
            self._spec(method, rate, seed, problems, name=method, samples=1, between=False)
            for rate in rates
            for seed in TUNING_SEEDS
        ]

    def reported_specs(self, rates: Mapping[str, float] = {}) -> list[Spec]:
        """Every cell that is compared, seed by seed: an interrupted comparison has whole seeds.

        A method without an entry in ``rates`` takes the tier's own. The baseline also runs at the others' rates.
        """
        problems = self.held_out[: self.n_eval]
        rows = {method: (method, rates.get(method, self.rate)) for method in self.methods}
        baseline_rate = rows[BASELINE][1]
        for rate in sorted({rate for name, rate in rows.values() if name != self.ceiling} - {baseline_rate}):
            rows[name_at_rate(BASELINE, rate)] = BASELINE, rate
        return [
            self._spec(method, rate, seed, problems, name=name, samples=self.samples, between=True)
            for seed in range(self.seeds)
            for name, (method, rate) in rows.items()
        ]

    def _spec(self, method: str, rate: float, seed: int, problems: range, **more: Any) -> Spec:
        built = build_method(self.methods[method])
        return Spec(
            credit=self.methods[method],
            task=self.task,
            tier=self.tier,
            seed=seed,
            steps=self.steps,
            n_eval=len(problems),
            first=problems.start,
            rollouts=self.own[method].get("rollouts", self.rollouts),
            sft=self.own[method].get(SFT, 0.0),
            rate=rate,
            engine=self.engine[method],
            run=self.run,
            # The repr of another object may hold its address, which no two processes share.
            resolved=(repr(built) if is_dataclass(built) else "") + _content_digest(self.methods[method]),
            **more,
        )


def _content_digest(credit: dict[str, Any]) -> str:
    """Of a method's own code and process reward model: another content makes another run."""
    content = code_of(credit) + _models_digest(credit)
    return f" {sha256(content).hexdigest()[:8]}" if content else ""


def _models_digest(credit: dict[str, Any]) -> bytes:
    """Of the folders that ``prm`` names, in the methods inside too."""
    inner = (_models_digest(cast(dict[str, Any], one)) for one in credit.values() if isinstance(one, dict))
    return b"".join([digest_of_folder(credit["prm"]) if credit.get("prm") else b"", *inner])


def plan_of(
    methods: Sequence[str],
    *,
    task: str,
    tier: str,
    seeds: int,
    steps: int | None = None,
    rollouts: int | None = None,
    rates: int = 4,
    n_eval: int = 256,
    samples: int = 4,
) -> Plan:
    """The checked plan of a comparison on a task of the arena, with the baseline and the ceiling.

    >>> plan = plan_of(["gear"], task="codebook", tier="easy", seeds=2, n_eval=64)
    >>> list(plan.methods), plan.ceiling
    (['uniform', 'oracle', 'gear'], 'oracle')
    >>> [(spec.name, spec.rate, spec.seed) for spec in plan.reported_specs()][2:4]
    [('gear', 0.0004, 0), ('uniform', 0.0004, 1)]
    """
    chosen = task_of(task, tier)
    budget = chosen.budgets[tier]
    check_counts(chosen.held_out, n_eval, rates, seeds=seeds, steps=steps, samples=samples)
    if rollouts is not None and (rollouts < 1 or rollouts % budget.num_generations):
        raise InputError(
            f"--rollouts: {rollouts} per step; give a multiple of the {budget.num_generations} of a group"
        )
    named, engine, own, ceiling = line_up(
        [*methods, CEILING], agent=chosen.agent, whole=budget.num_generations
    )
    return Plan(
        methods=named,
        engine=engine,
        own=own,
        ceiling=ceiling,
        task=chosen.name,
        tier=tier,
        held_out=chosen.held_out,
        seeds=seeds,
        steps=budget.steps if steps is None else steps,
        rollouts=budget.rollouts_per_step if rollouts is None else rollouts,
        rate=budget.learning_rate,
        rates=rates,
        n_eval=n_eval,
        samples=samples,
        outcome="accuracy",
    )


def check_counts(held_out: range, n_eval: int, rates: int, **counts: int | None) -> None:
    """``InputError`` for an option below 1, more than 16 rates, and more held-out problems than are reported."""
    for name, value in {"rates": rates, **counts}.items():
        if value is not None and value < 1:
            raise InputError(f"--{name}: {value}; give 1 or more")
    if rates > 16:
        raise InputError(f"--rates: {rates}; give 16 or fewer")
    most = len(reported_part(held_out, rates))
    if not 1 <= n_eval <= most:
        beside = f" beside the {len(held_out) - most} that tune rates" if rates > 1 else ""
        raise InputError(f"--n-eval: {n_eval}; there are {most} held-out problems to report on{beside}")


def rate_grid(rate: float, count: int) -> list[float]:
    """``count`` rates around a task's own, which is the second of four; one is the task's own.

    >>> rate_grid(4e-4, 4), rate_grid(4e-4, 1)
    ([0.0002, 0.0004, 0.0008, 0.0016], [0.0004])
    """
    return [_round_rate(rate * RATE_FACTOR ** (n - (count - 1) // 2)) for n in range(count)]


def worth_of_rate(ends: Sequence[float | None]) -> float:
    """What a rate is chosen by: the mean of where its runs ended; minus infinity if one failed.

    >>> worth_of_rate([0.9, 0.7]), worth_of_rate([0.9, None])
    (0.8, -inf)
    """
    done = [end for end in ends if end is not None]
    return round(fmean(done), 6) if len(done) == len(ends) else -math.inf


def best_rate(worth: Mapping[float, float], own: float = 0.0) -> float:
    """The rate that is worth most; of equal ones the nearest to the run's ``own``, else the smallest.

    >>> worth = {0.1: 0.75, 0.2: 0.75, 0.4: 0.75}
    >>> best_rate(worth), best_rate(worth, 0.2)
    (0.1, 0.2)
    """
    return min(worth, key=lambda rate: (-worth[rate], abs(rate - own)))


def next_rate(worth: Mapping[float, float], first: list[float]) -> float | None:
    """The rate to try next: beyond the edge where the best one lies; None if it lies inside or too far out.

    An edge that is worth no more than its neighbour promises nothing beyond.

    >>> next_rate({0.1: 0.5, 0.2: 0.75}, [0.1, 0.2]), next_rate({0.1: 0.5, 0.2: 0.75, 0.4: 0.5}, [0.1, 0.2])
    (0.4, None)
    """
    chosen, tried = best_rate(worth), sorted(worth)
    if len(first) < 2 or tried[0] < chosen < tried[-1]:
        return None
    if worth[tried[1] if chosen == tried[0] else tried[-2]] == worth[chosen]:
        return None
    beyond = _round_rate(chosen * RATE_FACTOR if chosen == tried[-1] else chosen / RATE_FACTOR)
    limit = RATE_FACTOR**MOST_WIDENINGS * 1.01
    return beyond if min(first) / limit <= beyond <= max(first) * limit else None


def _round_rate(rate: float) -> float:
    """Two ways to the same rate must give the same number: it names a file."""
    return float(f"{rate:.4g}")


def run_plan(
    plan: Plan,
    folder: Path,
    *,
    jobs: int,
    each: Callable[[Cell], None] = lambda cell: None,
    estimate: Callable[[float], None] = lambda seconds: None,
    expect: Callable[[int, int], None] = lambda todo, total: None,
) -> tuple[list[Cell], dict[str, dict[str, Any]]]:
    """The compared runs, and the search for every method's rate (`settings.rates` of the findings).

    Runs that are finished in the folder are not repeated; those that failed before this call are. ``each`` and
    ``estimate`` are those of ``run_cells``; ``expect`` gets how many are still to run, and of how many.
    """
    first = rate_grid(plan.rate, plan.rates)
    untuned = {method: first for method in plan.methods if plan.rates > 1}
    tuned: dict[str, dict[str, Any]] = {}
    cells = list[Cell]()

    def run_specs(specs: list[Spec], later: int) -> list[Cell]:
        todo = sum(finished_cell(spec, folder) is None for spec in specs)
        expect(todo + later, len(specs) + later)
        return run_cells(specs, folder, jobs=jobs, each=each, estimate=estimate)

    least_reported = plan.seeds * len(plan.methods)
    while untuned:
        specs = [spec for method, rates in untuned.items() for spec in plan.tuning_specs(method, rates)]
        cells += run_specs(specs, least_reported)
        outcome = plan.outcome or outcome_of(cells)
        for method in list(untuned):
            ends: dict[float, list[float | None]] = {}
            for cell in cells:
                if cell.method == method and cell.rate is not None:
                    pair = cell.ends(outcome)
                    ends.setdefault(cell.rate, []).append(pair and pair[1])
            tried = {rate: worth_of_rate(ends[rate]) for rate in sorted(ends)}
            beyond = next_rate(tried, first)
            if beyond is not None:
                untuned[method] = [beyond]
                continue
            del untuned[method]
            chosen = best_rate(tried, plan.rate)
            shown = {f"{rate:g}": value if math.isfinite(value) else None for rate, value in tried.items()}
            at_edge = chosen in (min(tried), max(tried))
            tuned[method] = {"rate": chosen, "at_edge": at_edge, "tried": shown}
    reported = run_specs(plan.reported_specs({method: search["rate"] for method, search in tuned.items()}), 0)
    return reported, tuned


def findings_of(plan: Plan, cells: Sequence[Cell], tuned: Mapping[str, Any], *, command: str) -> Findings:
    """The findings: verdicts, runs and settings; nothing depends on time or on interruptions."""
    # No default of ours was chosen on a user's run.
    choosing = plan.run is None and plan.tier in get_task(plan.task).tuned_on
    use = "choosing" if choosing else "reporting"
    names = ("task", "tier", "steps", "rollouts", "n_eval", "samples")
    settings: dict[str, Any] = {"use": use, "place": plan.place} | {n: getattr(plan, n) for n in names}
    if plan.run is not None:
        settings["run"] = without_secrets(plan.run)
    settings["rates"] = tuned
    settings["engine"] = {method: engine for method, engine in plan.engine.items() if engine}
    timeless = [cell.model_copy(update={"seconds": None, "versions": {}}) for cell in cells]
    return Findings(
        title=f"Does it help? {plan.place}, for {use}",
        command=command,
        settings=settings,
        versions=_versions(cells),
        comparison=compare(
            timeless, baseline=BASELINE, ceiling=plan.ceiling, outcome=plan.outcome or outcome_of(cells)
        ),
    )


def _versions(cells: Sequence[Cell]) -> dict[str, str]:
    """The versions that the runs had; all of them where they differ."""
    seen: dict[str, set[str]] = {}
    for cell in cells:
        for package, version in cell.versions.items():
            seen.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(those)) for package, those in seen.items()}
