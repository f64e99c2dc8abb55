"""A comparison: every method at its own best rate, by seeds, resumed where it was interrupted."""

# pyright: reportMissingTypeStubs=false

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gear_rl.arena.split import TUNING_SEEDS, reported, tuning, use_of
from gear_rl.credit.config import METHOD_SETTINGS
from gear_rl.errors import InputError
from gear_rl.files import replace_file
from gear_rl.lab.oracle import ORACLE
from gear_rl.lab.training import Spec, finished, run_cells
from gear_rl.runs.arena import task_of
from gear_rl.runs.config import build_method, put
from gear_rl.traits import engine_settings_of

BASELINE = "uniform"
"""GRPO: in every comparison."""
CEILING = "oracle"
"""The control that is given the true advantages."""
FACTOR = 2.0
"""Between neighbours of the grid."""
MOST_STEPS = 3
"""How far the grid is widened on either side before the best is left at its edge."""
_COMMA = re.compile(r",(?![^\[]*\])")
"""Between two methods or settings; one in the brackets of a list, as in ``clip=[0.5,2]``, is a part of it."""


def split_methods(text: str) -> list[str]:
    """The methods of a list with commas; what follows a colon and has no name of its own is a setting.

    >>> split_methods("gear:alpha=0.5,sign_mode=aware,shuffled")
    ['gear:alpha=0.5,sign_mode=aware', 'shuffled']
    """
    methods: list[str] = []
    for part in _COMMA.split(text):
        if methods and "=" in part and ":" not in part:
            methods[-1] += f",{part.strip()}"
        elif part.strip():
            methods.append(part.strip())
    if not methods:
        raise InputError("--methods: empty; name one or more, with commas between them")
    return methods


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """``gear`` or ``gear:sign_mode=aware,alpha=0.5``: the name it is compared under, and its settings.

    >>> parse_method("blaming=gear:sign_mode=aware")  # a shorter name
    ('blaming', {'name': 'gear', 'sign_mode': 'aware'})
    >>> parse_method("random_onsets:of.alpha=1")  # a setting of the method that a placebo is made of
    ('random_onsets:of.alpha=1', {'name': 'random_onsets', 'of': {'alpha': 1}})
    """
    import yaml

    shown, given, rest = text.strip().partition("=")
    if given and ":" not in shown:
        return shown.strip(), parse_method(rest)[1]
    name, _, settings = text.strip().partition(":")
    if "." in name:  # package.module:object
        return text.strip(), {"name": text.strip()}
    credit: dict[str, Any] = dict(ORACLE) if name == CEILING else {"name": name}
    for part in _COMMA.split(settings) if settings else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"--methods: {part!r} in {text!r} is no setting; write {name}:SETTING=VALUE")
        put(credit, key.strip(), yaml.safe_load(value))
    return text.strip(), credit


def parse_methods(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same of each; ``InputError`` where two that differ would be compared under one name.

    >>> parse_methods(["uniform", "gear:alpha=0.5"])
    {'uniform': {'name': 'uniform'}, 'gear:alpha=0.5': {'name': 'gear', 'alpha': 0.5}}
    """
    named: dict[str, dict[str, Any]] = {}
    for name, credit in map(parse_method, texts):
        if named.setdefault(name, credit) != credit:
            raise InputError(f"--methods: {name!r} stands for {named[name]} and for {credit}; rename one")
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a comparison runs."""

    methods: dict[str, dict[str, Any]]
    """The names they are compared under, and their settings; the baseline first, then the ceiling if any."""
    engine: dict[str, dict[str, Any]]
    """The settings of the engine of each method: its own, and what was given instead."""
    ceiling: str | None
    task: str
    tier: str
    held_out: range
    """Seeds of the task's held-out problems; the first of them are reported on."""
    seeds: int
    steps: int
    rollouts: int
    """Per step."""
    rate: float
    """The tier's own learning rate."""
    rates: int
    """How many rates are tried for each method at first; 1 for the tier's own and no search."""
    n_eval: int
    samples: int
    run: dict[str, Any] | None = None
    """The user's own run, in place of a task of the arena."""

    @property
    def place(self) -> str:
        """What is trained on, in words."""
        return f"{self.task}/{self.tier}" if self.run is None else f"{self.tier} on {self.task}"

    def tuning(self, method: str, rates: Iterable[float]) -> list[Spec]:
        """The runs that tell which rate is the method's best: on seeds and problems that are never reported."""
        problems = tuning(self.held_out)
        settings = {"n_eval": len(problems), "first": problems.start, "samples": 1, "n_between": 0}
        return [self._spec(method, rate, seed, settings) for rate in rates for seed in TUNING_SEEDS]

    def reported(self, rates: Mapping[str, float] | None = None) -> list[Spec]:
        """Every cell that is compared, seed by seed: what is there when it is interrupted can be compared.

        A method that ``rates`` does not have takes the tier's own.
        """
        settings = {"n_eval": self.n_eval, "first": self.held_out.start, "samples": self.samples}
        settings["n_between"] = min(128, -(-self.n_eval // 4))
        return [
            self._spec(method, (rates or {}).get(method, self.rate), seed, settings)
            for seed in range(self.seeds)
            for method in self.methods
        ]

    def _spec(self, method: str, rate: float, seed: int, evaluation: dict[str, int]) -> Spec:
        built = build_method(self.methods[method])
        return Spec(
            name=method,
            credit=self.methods[method],
            task=self.task,
            tier=self.tier,
            seed=seed,
            steps=self.steps,
            rollouts=self.rollouts,
            rate=rate,
            engine=self.engine[method],
            run=self.run,
            # The repr of another object may hold its address, which no two processes share.
            resolved=repr(built) if is_dataclass(built) else "",
            **evaluation,
        )


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
    """The plan of a comparison on a task of the arena, checked; the baseline and the ceiling are in it.

    >>> plan = plan_of(["gear"], task="codebook", tier="easy", seeds=2, n_eval=64)
    >>> list(plan.methods), plan.ceiling
    (['uniform', 'oracle', 'gear'], 'oracle')
    >>> [(spec.name, spec.rate, spec.seed) for spec in plan.reported()][2:4]
    [('gear', 0.0004, 0), ('uniform', 0.0004, 1)]
    """
    chosen = task_of(task, tier)
    budget = chosen.budgets[tier]
    check_counts(chosen.held_out, n_eval, seeds=seeds, rates=rates, steps=steps, samples=samples)
    if rollouts is not None and (rollouts < 1 or rollouts % budget.num_generations):
        raise InputError(
            f"--rollouts: {rollouts} per step; give a multiple of the {budget.num_generations} of a group"
        )
    named, engine, ceiling = line_up([*methods, CEILING])
    return Plan(
        methods=named,
        engine=engine,
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
    )


def check_counts(held_out: range, n_eval: int, **counts: int | None) -> None:
    """``InputError`` for an option below 1, and for more held-out problems than can be reported on."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InputError(f"--{name}: {value}; give 1 or more")
    most = len(reported(held_out))
    if not 1 <= n_eval <= most:
        raise InputError(f"--n-eval: {n_eval}; there are {most} held-out problems to report on")


def line_up(
    methods: Sequence[str], usual: Mapping[str, Any] | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], str | None]:
    """Methods by name, the settings of the engine of each, and the name of the ceiling if an oracle is there.

    The baseline comes first, then the ceiling: the first oracle; any other that ``oracle`` alone names goes.
    ``usual`` are the run's settings of the engine: they win over what a method brings, not over what it was
    given.

    >>> line_up(["gear:teacher_model_kind=live,alpha=2", "oracle:branches=16", "oracle"])[2]
    'oracle:branches=16'
    """
    given = parse_methods(methods)
    ceiling = next((name for name, credit in given.items() if credit["name"] == ORACLE["name"]), None)
    if ceiling != CEILING:
        given.pop(CEILING, None)
    first = (BASELINE,) if ceiling is None else (BASELINE, ceiling)
    named = {name: given.get(name, {"name": name}) for name in first} | given
    engine: dict[str, dict[str, Any]] = {}
    for name, credit in named.items():
        own = {setting: credit.pop(setting) for setting in METHOD_SETTINGS if setting in credit}
        engine[name] = engine_settings_of(build_method(credit)) | dict(usual or {}) | own
    return named, engine, ceiling


def grid(rate: float, count: int) -> list[float]:
    """So many rates around a task's own, which is the second of four; one is the task's own.

    >>> grid(4e-4, 4), grid(4e-4, 1)
    ([0.0002, 0.0004, 0.0008, 0.0016], [0.0004])
    """
    return [_rounded(rate * FACTOR ** (n - (count - 1) // 2)) for n in range(count)]


def best(accuracy: Mapping[float, float]) -> float:
    """The rate with the highest accuracy; of equal ones the smallest.

    >>> best({0.1: 0.5, 0.2: 0.75, 0.4: 0.75})
    0.2
    """
    return min(accuracy, key=lambda rate: (-accuracy[rate], rate))


def next_rate(accuracy: Mapping[float, float], first: list[float]) -> float | None:
    """The rate to try next: beyond the edge that the best one lies at; None if it lies inside or too far out.

    >>> next_rate({0.1: 0.5, 0.2: 0.75}, [0.1, 0.2]), next_rate({0.1: 0.5, 0.2: 0.75, 0.4: 0.5}, [0.1, 0.2])
    (0.4, None)
    """
    chosen, low, high = best(accuracy), min(accuracy), max(accuracy)
    if len(first) < 2 or low < chosen < high:
        return None
    beyond = _rounded(chosen * FACTOR if chosen == high else chosen / FACTOR)
    limit = FACTOR**MOST_STEPS * 1.01
    return beyond if min(first) / limit <= beyond <= max(first) * limit else None


def _rounded(rate: float) -> float:
    """Two ways to the same rate must meet in the same number: it names a file."""
    return float(f"{rate:.4g}")


def run_plan(
    plan: Plan,
    folder: Path,
    *,
    jobs: int,
    each: Callable[[dict[str, Any]], None] = lambda cell: None,
    expect: Callable[[int, int], None] = lambda todo, total: None,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The compared cells, and what was found of the rate of every method (`settings.rates` of the findings).

    What is finished in the folder is not run again. ``each`` gets every cell that was run, as it ends; ``expect``
    how many are still to run now, and of how many. A tuning run that failed counts as an accuracy of 0.
    """
    first = grid(plan.rate, plan.rates)
    rates = {method: list(first) for method in plan.methods}
    tuned: dict[str, dict[str, Any]] = {}

    def run(specs: list[Spec], later: int) -> list[dict[str, Any]]:
        todo = sum(finished(spec, folder) is None for spec in specs)
        expect(todo + later, len(specs) + later)
        return run_cells(specs, folder, jobs=jobs, each=each)

    num_reported = plan.seeds * len(plan.methods)
    while plan.rates > 1 and len(tuned) < len(rates):
        untuned = [method for method in plan.methods if method not in tuned]
        rows = run([spec for m in untuned for spec in plan.tuning(m, rates[m])], num_reported)
        for method in untuned:
            tried = _accuracies([row for row in rows if row["method"] == method])
            beyond = next_rate(tried, first)
            if beyond is not None:
                rates[method].append(beyond)
                continue
            chosen = best(tried)
            shown = {f"{rate:g}": accuracy for rate, accuracy in tried.items()}
            at_edge = chosen in (min(tried), max(tried))
            tuned[method] = {"rate": chosen, "at_edge": at_edge, "tried": shown}
    return run(plan.reported({method: one["rate"] for method, one in tuned.items()}), 0), tuned


def _accuracies(rows: Sequence[dict[str, Any]]) -> dict[float, float]:
    """Rate to mean accuracy after training."""
    ends: dict[float, list[float]] = {}
    for row in rows:
        ends.setdefault(row["rate"], []).append(row.get("accuracy_after") or 0.0)
    return {rate: round(fmean(ends[rate]), 6) for rate in sorted(ends)}


def compared(
    plan: Plan, rows: Sequence[dict[str, Any]], tuned: Mapping[str, Any], *, command: str
) -> dict[str, Any]:
    """The verdicts, the cells and what they were run with; nothing depends on time or on interruptions."""
    from gear_rl.lab.report import findings
    from gear_rl.lab.verdict import compare

    own = plan.run is not None
    use = "reporting" if own else use_of(plan.task, plan.tier)  # no default of ours knew a user's run
    names = ("task", "tier", "steps", "rollouts", "n_eval", "samples")
    settings: dict[str, Any] = {"use": use, "place": plan.place} | {n: getattr(plan, n) for n in names}
    if own:
        settings["run"] = plan.run
    settings["rates"] = tuned
    settings["engine"] = {row["method"]: row["spec"]["engine"] for row in rows if row["spec"]["engine"]}
    timeless = [row | {"seconds": None} for row in rows]
    return findings(
        title=f"Does it help? {plan.place}, for {use}",
        command=command,
        comparisons=[compare(timeless, BASELINE, ceiling=plan.ceiling)],
        settings=settings,
        versions=_versions(rows),
    )


def _versions(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the cells ran with; where they differ, every version that one of them had.

    >>> _versions([{"versions": {"torch": "2.13.0"}}, {"versions": {"torch": "2.14.0"}}, {}])
    {'torch': '2.13.0, 2.14.0'}
    """
    had: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row.get("versions", {}).items():
            had.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(those)) for package, those in had.items()}


def save(comparison: dict[str, Any], folder: Path) -> None:
    """The numbers as JSON, the page and the figures, each in place at once."""
    from gear_rl.lab.report import save_plots, save_report

    replace_file(folder / "comparison.json", (json.dumps(comparison, indent=1) + "\n").encode())
    save_report(comparison, folder / "report.html")
    save_plots(comparison, folder / "plots")
