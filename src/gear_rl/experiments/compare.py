"""A comparison: methods by seeds, each run in a process of its own, resumed where it was interrupted."""

# pyright: reportMissingTypeStubs=false

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gear_rl.errors import InputError
from gear_rl.experiments.cells import Spec, failed, finished, read_cell
from gear_rl.files import replace_file
from gear_rl.runs.arena import task_of
from gear_rl.runs.config import build_method
from gear_rl.runs.versions import versions
from gear_rl.traits import engine_settings_of

_BASELINE = "uniform"
_SAMPLES = 4
"""Answers to every held-out problem where the user does not say."""


def split_methods(text: str) -> list[str]:
    """The methods of a list with commas; what follows a colon and has no name of its own is a setting.

    >>> split_methods("gear:alpha=0.5,sign_mode=aware,shuffled")
    ['gear:alpha=0.5,sign_mode=aware', 'shuffled']
    """
    methods: list[str] = []
    for part in text.split(","):
        if methods and "=" in part and ":" not in part:
            methods[-1] += f",{part.strip()}"
        elif part.strip():
            methods.append(part.strip())
    if not methods:
        raise InputError("--methods: empty; name one or more, with commas between them")
    return methods


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """``gear`` or ``gear:sign_mode=aware,alpha=0.5``: the name it is compared under, and its settings.

    >>> parse_method("gear:sign_mode=aware")
    ('gear:sign_mode=aware', {'name': 'gear', 'sign_mode': 'aware'})
    >>> parse_method("blaming=gear:sign_mode=aware")  # a shorter name
    ('blaming', {'name': 'gear', 'sign_mode': 'aware'})
    """
    import yaml

    shown, given, rest = text.strip().partition("=")
    if given and ":" not in shown:
        return shown.strip(), parse_method(rest)[1]
    name, _, settings = text.strip().partition(":")
    if "." in name:  # package.module:object
        return text.strip(), {"name": text.strip()}
    credit: dict[str, Any] = {"name": name}
    for part in settings.split(",") if settings else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"--methods: {part!r} in {text!r} is no setting; write {name}:SETTING=VALUE")
        credit[key.strip()] = yaml.safe_load(value)
    return text.strip(), credit


def parse_methods(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same of each of them; ``InputError`` where two that differ would be compared under one name.

    >>> parse_methods(["uniform", "gear:alpha=0.5"])
    {'uniform': {'name': 'uniform'}, 'gear:alpha=0.5': {'name': 'gear', 'alpha': 0.5}}
    """
    named: dict[str, dict[str, Any]] = {}
    for name, credit in map(parse_method, texts):
        if named.setdefault(name, credit) != credit:
            raise InputError(f"--methods: {name!r} stands for {named[name]} and for {credit}; rename one")
    return named


def specs_of(
    methods: Sequence[str],
    *,
    task: str,
    tier: str,
    seeds: int,
    steps: int | None,
    n_eval: int,
    samples: int = _SAMPLES,
) -> list[Spec]:
    """Every cell, seed by seed, so that whatever was run when it is interrupted can be compared already.

    >>> [spec.file for spec in specs_of(["gear"], task="chain", tier="easy", seeds=2, steps=9, n_eval=64)]
    ['uniform-0.json', 'gear-0.json', 'uniform-1.json', 'gear-1.json']
    """
    chosen = task_of(task, tier)
    if seeds < 1:
        raise InputError(f"--seeds: {seeds}; give 1 or more")
    if steps is not None and steps < 1:
        raise InputError(f"--steps: {steps} is no training; give 1 or more")
    if not 1 <= n_eval <= len(chosen.held_out):
        raise InputError(f"--n-eval: {n_eval}; there are {len(chosen.held_out)} held-out problems")
    if samples < 1:
        raise InputError(f"--samples: {samples}; give 1 or more answers to every held-out problem")
    named = {_BASELINE: {"name": _BASELINE}} | parse_methods(methods)
    published = {name: engine_settings_of(build_method(credit)) for name, credit in named.items()}
    return [
        Spec(
            name=name,
            credit=credit,
            task=chosen.name,
            tier=tier,
            seed=seed,
            steps=chosen.budgets[tier].steps if steps is None else steps,
            n_eval=n_eval,
            samples=samples,
            n_between=min(128, -(-n_eval // 4)),
            engine=published[name],
        )
        for seed in range(seeds)
        for name, credit in named.items()
    ]


def run_cells(
    specs: Sequence[Spec],
    folder: Path,
    *,
    jobs: int,
    each: Callable[[dict[str, Any]], None] = lambda cell: None,
) -> list[dict[str, Any]]:
    """Run what is not there yet, ``jobs`` at a time, and return every cell in the order of the specs.

    ``each`` gets every cell that was run, as it ends. A cell is a process of its own: one that dies takes no
    other along, and each begins from a clean slate. What is finished when this is interrupted is not run again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [finished(spec, folder) for spec in specs]
    running: dict[int, subprocess.Popen[str]] = {}

    def run(i: int) -> dict[str, Any]:
        running[i] = process = _started(specs[i], folder)
        return _ended(process, specs[i], folder)

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            futures = {pool.submit(run, i): i for i, row in enumerate(rows) if row is None}
            for future in as_completed(futures):
                rows[futures[future]] = future.result()
                each(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running.values():
                process.terminate()
            raise
    return [row for row in rows if row is not None]


def _started(spec: Spec, folder: Path) -> subprocess.Popen[str]:
    """The process of a cell, with one thread: more only wait for each other."""
    words = [sys.executable, "-m", "gear_rl.experiments.cells", json.dumps(asdict(spec)), str(folder)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )


def _ended(process: subprocess.Popen[str], spec: Spec, folder: Path) -> dict[str, Any]:
    """The cell that the process left in the folder; a failed one if it left none."""
    errors = process.communicate()[1]
    cell = read_cell(spec, folder) if process.returncode == 0 else None
    if cell is not None:
        return cell
    last = (errors.strip().splitlines() or [""])[-1]
    return failed(spec, f"the process ended with {process.returncode}: {last}")


def compared(rows: Sequence[dict[str, Any]], *, command: str) -> dict[str, Any]:
    """The verdicts, the cells and what they were run with (docs/laboratory.md).

    Nothing in it depends on time, or on how often the runs were interrupted.
    """
    from gear_rl.lab.cells import Cell
    from gear_rl.lab.report import findings
    from gear_rl.lab.verdict import compare

    cells = [Cell.from_dict(row | {"seconds": None}) for row in rows]
    first = rows[0]
    settings = {name: first[name] for name in ("task", "tier", "steps", "n_eval", "samples")}
    settings["engine"] = {row["method"]: row["spec"]["engine"] for row in rows if row["spec"]["engine"]}
    return findings(
        title=f"Does it help? {first['task']}/{first['tier']}",
        command=command,
        comparisons=[(compare(cells, _BASELINE), cells)],
        settings=settings,
        versions=versions(),
    )


def save(comparison: dict[str, Any], folder: Path) -> None:
    """The numbers as JSON, the page and the figures, each in place at once."""
    from gear_rl.lab.report import save_plots, save_report

    replace_file(folder / "comparison.json", (json.dumps(comparison, indent=1) + "\n").encode())
    save_report(comparison, folder / "report.html")
    save_plots(comparison, folder / "plots")
