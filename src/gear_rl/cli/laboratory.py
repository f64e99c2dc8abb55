"""``gear score``, ``gear compare`` and ``gear bench``: the laboratory's commands.

Heavy imports live inside them, so that ``gear --help`` answers at once.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gear_rl.cli.errors import InputError, did_you_mean, error_console, mendable, out_console

bench_app = typer.Typer(help="What a method costs, measured beside plain GRPO.", no_args_is_help=True)
ALIASES = {"sums": "chain"}
"""Other names of the arena's tasks."""


def add_laboratory(app: typer.Typer) -> None:
    """Hang these commands into ``gear``."""
    app.command()(score)
    app.command()(compare)
    app.add_typer(bench_app, name="bench")


@mendable
def score(
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them; floors and controls come by themselves.")
    ] = "gear,rlsd",
    task: Annotated[str, typer.Option(help="chain (or sums) or ledger.")] = "chain",
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    fault: Annotated[
        str, typer.Option(help="Of the task ledger: relation (a wrong tool) or argument (payer and payee).")
    ] = "relation",
    n: Annotated[int, typer.Option(help="Held-out problems, one planted fault in each.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers, as JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page (.html) with table and figure.")] = None,
) -> None:
    """Does the credit lie where the fault is? Plants faults, runs the engine on them, trains nothing.

    A method may carry settings: --methods gear,gear:onset_signal=log_ratio
    """
    from gear_rl.cli.compare import parse_methods, split_methods

    if fault not in ("relation", "argument"):
        raise InputError(f"--fault: {fault!r} is not one of relation, argument")
    chosen = parse_methods(split_methods(methods))
    from gear_rl.cli.score import places_of, score_table
    from gear_rl.cli.score import score as run
    from gear_rl.cli.train import quiet_libraries

    quiet_libraries(error_console)
    found, rows = run(
        chosen,
        task=ALIASES.get(task, task),
        tier=tier,
        n=n,
        fault=cast(Any, fault),
        console=error_console,
    )
    if report is not None:
        from gear_rl.lab.report import findings, save_report

        document = findings(
            title=f"Where credit lands: {found['task']}/{found['tier']}",
            command=_command(),
            localisations=[places_of(found, rows)],
            settings={"n": n, "methods": sorted(chosen)},
            versions=found["versions"],
        )
        save_report(document, report)
        error_console.print(f"wrote {report}", highlight=False)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        out_console.print(score_table(found))


@mendable
def compare(
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them; uniform (GRPO) is always among them.")
    ] = "gear,shuffled",
    seeds: Annotated[int, typer.Option(help="Runs of each method, seeds from 0.")] = 3,
    task: Annotated[str, typer.Option(help="chain (or sums) or ledger.")] = "chain",
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps; by default the tier's own budget.")
    ] = None,
    n_eval: Annotated[int, typer.Option(help="Held-out problems before and after each run.")] = 512,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; by default one per core.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder: one file per run, comparison.json, report.html and plots.")
    ] = Path("runs/compare"),
    as_json: Annotated[bool, typer.Option("--json", help="The comparison, as JSON.")] = False,
) -> None:
    """Does a method help? Trains every method with every seed on one budget, and compares in words.

    Runs that are finished in the folder are not run again; what failed is. A method may carry settings, which are
    compared under that name or one of yours: --methods gear,blaming=gear:sign_mode=aware,shuffled
    """
    from gear_rl.cli.compare import compared, run_cells, save, specs_of, split_methods, verdict_table

    specs = specs_of(
        split_methods(methods),
        task=ALIASES.get(task, task),
        tier=tier,
        seeds=seeds,
        steps=steps,
        n_eval=n_eval,
    )
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs: {jobs}; give 1 or more")
    rows = run_cells(specs, out / "cells", jobs=jobs or os.cpu_count() or 1, console=error_console)
    found = compared(rows, command=_command())
    save(found, out)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        out_console.print(verdict_table(found))
    error_console.print(f"wrote {out}/comparison.json, report.html and plots", highlight=False)
    failures = found["comparisons"][0]["failed"]
    if failures:
        error_console.print(f"{len(failures)} runs failed; run the same command again", highlight=False)
        raise typer.Exit(1)


@bench_app.command("methods")
@mendable
def bench_methods(
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method (may be repeated); else all.")
    ] = None,
    task: Annotated[str, typer.Option(help="What to train on: chain or ledger.")] = "chain",
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    steps: Annotated[int, typer.Option(help="Steps per run; the first does not count.")] = 4,
    repeats: Annotated[int, typer.Option(help="Runs of every method.")] = 3,
    rollouts: Annotated[int, typer.Option(help="Rollouts per step, in groups of 8.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file too.")] = None,
) -> None:
    """Seconds per training step of every method over those of GRPO, on the arena, in one run."""
    from gear_rl.methods import METHODS

    for name in method or ():
        if name not in METHODS:
            raise InputError(f"--method: no method {name!r}; {did_you_mean(name, METHODS)}")
    if rollouts < 8 or rollouts % 8:
        raise InputError(f"--rollouts: {rollouts} do not divide into groups of 8")
    from gear_rl.cli.bench import bench_methods as run
    from gear_rl.cli.bench import methods_table
    from gear_rl.cli.train import quiet_libraries

    quiet_libraries(error_console)
    found = run(
        method or list(METHODS),
        task=task,
        tier=tier,
        steps=steps,
        repeats=repeats,
        rollouts=rollouts,
        console=error_console,
    )
    text = json.dumps(found, indent=2) + "\n"
    if out is not None:
        from gear_rl.view.records import replace_file

        replace_file(out, text.encode())
    if as_json:
        sys.stdout.write(text)
    else:
        out_console.print(methods_table(found))


def _command() -> str:
    return " ".join(["gear", *sys.argv[1:]])
