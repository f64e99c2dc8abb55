"""``gear compare``: does a method help?"""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from gear_rl.arena.task import TELLING_TASK
from gear_rl.cli.console import (
    AsJson,
    command_line,
    error_console,
    is_given,
    number_or_dash,
    out_console,
    progress_bar,
    refuse,
    refuse_words,
    say,
    show_log,
)
from gear_rl.cli.score import TASK_HELP, TIER_HELP
from gear_rl.errors import InputError

if TYPE_CHECKING:
    from gear_rl.lab.cells import Cell
    from gear_rl.lab.comparison import Plan
    from gear_rl.lab.findings import Findings
    from gear_rl.lab.verdict import Verdict


QUICK = {"methods": "gear", "seeds": 3, "rates": 1, "steps": 6, "n_eval": 24, "samples": 1}
"""The options of ``--quick``; each may still be given."""
_QUICK_WORDS = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in QUICK.items())
_INSTEAD = {
    "output_dir": "a comparison writes to the folder of --out; give that",
    "credit": "the methods are those of --methods; write --methods gear:alpha=0.5",
    "seed": "every method has the seeds 0, 1, ...; give their number as --seeds",
    "num_train_epochs": "a comparison has a number of optimizer steps; give --steps",
    "resume_from_checkpoint": "a comparison resumes by itself from the folder of --out; leave it out",
    "max_steps": "--steps is given too; leave one of them out",
}
"""Flags of ``gear train`` that would not count, and what to do instead; a file may have them."""


def compare(
    context: typer.Context,
    methods: Annotated[str, typer.Option(help="Comma-separated; uniform (GRPO) is added.")] = "gear,shuffled",
    seeds: Annotated[int, typer.Option(help="Runs of each method, seeds from 0.")] = 3,
    task: Annotated[str, typer.Option(help=TASK_HELP)] = TELLING_TASK,
    tier: Annotated[str | None, typer.Option(help=f"{TIER_HELP}.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; else the tier's own.")] = None,
    rollouts: Annotated[int | None, typer.Option(help="Per step; else the tier's own.")] = None,
    rates: Annotated[int, typer.Option(help="Learning rates to try, or 1 for the tier's own.")] = 4,
    config: Annotated[Path | None, typer.Option(help="In place of a task: the file of your own run.")] = None,
    n_eval: Annotated[int | None, typer.Option(help="Held-out problems; 256 if there are so many.")] = None,
    samples: Annotated[int | None, typer.Option(help="Answers to each; 4, of your own run 1.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Of your own run: reward (its mean) or success; reward where graded.")
    ] = None,
    perplexity: Annotated[
        Path | None, typer.Option(help="A text; your run's model on it, before and after, is shown beside.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"A first look: {_QUICK_WORDS}.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; one per core, your own 1.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("runs/compare"),
    as_json: AsJson = False,
) -> None:
    """Does a method help?

    Trains every method at its own best learning rate on one budget of rollouts,
    and compares in words. Finished runs in the folder are kept.

    The reference is a control with the true advantage of every token (oracle).
    Where no formula gives it, rollouts branch off at every token, which is slow:
    your own run has it only if you name it.

    A method may have settings and a name of yours: --methods
    gear,blaming=gear:sign_mode=aware. Rows of what you would do instead: sft
    (fine-tuning on the privileged text), gear:sft=0.5 (in the first half of the
    steps), more=uniform:rollouts=48.

    Your own run: --config run.yaml, or --model M --dataset D --reward R; other
    settings follow as in gear train. Compared is the mean reward on its held-out
    rows, or the share that reach success_reward where rewards are right or wrong
    alone. Further tiers of eval_dataset are shown beside.
    """
    from gear_rl.lab.cells import RUNS
    from gear_rl.lab.comparison import findings_of, plan_of
    from gear_rl.lab.findings import save
    from gear_rl.lab.lineup import split_methods
    from gear_rl.lab.statistics import LEAST
    from gear_rl.runs.arena import task_of

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs: {jobs}; give 1 or more")
    if quick and not is_given(context, "methods"):
        methods = str(QUICK["methods"])
    chosen = split_methods(methods)
    given = {"steps": steps, "n_eval": n_eval, "samples": samples, "rollouts": rollouts}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {"seeds": seeds, "rates": rates}
    keys = [word[2:].partition("=")[0].replace("-", "_") for word in context.args if word[:2] == "--"]
    if quick:
        preset = {name: value for name, value in QUICK.items() if name != "methods"}
        options |= {name: value for name, value in preset.items() if not is_given(context, name)}
        if "max_steps" in keys and steps is None:
            del options["steps"]
    if config is not None or any(key.startswith(("model", "dataset")) for key in keys):
        from gear_rl.lab.run_plan import plan_of_run
        from gear_rl.runs.run_config import load_config

        why = "is for the arena's tasks; leave it out with your own data"
        refuse(context, "task", "tier", "rollouts", why=why)
        show_log(logging.WARNING)
        for key in keys:
            why = _INSTEAD.get(key.partition(".")[0])
            if why is not None and (key != "max_steps" or steps is not None):
                raise InputError(f"--{key}: {why}")
        if outcome not in (None, "reward", "success"):
            raise InputError(f"--outcome: {outcome}; give reward or success")
        if quick and n_eval is None:
            options["n_usual"] = options.pop("n_eval")
        options |= {"outcome": outcome, "perplexity": perplexity}
        plan = plan_of_run(load_config(config, context.args), chosen, **options)
        jobs = jobs or 1
    else:
        refuse(
            context, "outcome", "perplexity", why="is for your own run; leave it out with a task of the arena"
        )
        refuse_words(context)
        plan = plan_of(chosen, task=task, tier=tier or task_of(task).laboratory_tier, **options)
    jobs = jobs or os.cpu_count() or 1
    if plan.seeds < LEAST:
        say(f"--seeds: {plan.seeds}; these runs will end without a verdict, which needs {LEAST} or more")
    cells, tuned = run_plan_with_bar(plan, out / "cells", jobs=jobs, console=error_console)
    findings = findings_of(plan, cells, tuned, command=command_line())
    save(findings, out)
    if as_json:
        typer.echo(findings.model_dump_json(indent=1))
    else:
        out_console.print(verdict_table(findings))
    say(f"wrote {out}/{RUNS} and report.html")
    failed = sum(cell.error is not None for cell in cells)
    if failed:
        say(f"{failed} runs failed; run the same command again")
        raise typer.Exit(1)


def run_plan_with_bar(
    plan: "Plan", folder: Path, *, jobs: int, console: Console
) -> tuple[list["Cell"], dict[str, dict[str, Any]]]:
    """``run_plan`` with a progress bar; a run that fails is printed at once."""
    from gear_rl.lab.comparison import run_plan

    with progress_bar(console, "runs ") as progress:
        done = total = 0
        told = False

        def estimate(seconds: float) -> None:
            nonlocal told
            if not told:
                left = timedelta(seconds=round(seconds * (total - done) / jobs))
                console.print(f"a run takes about {seconds:.0f} s: {left} left", highlight=False)
            told = True

        def expect(todo: int, whole: int) -> None:
            nonlocal total
            if not total:
                kept = f", {whole - todo} more are finished" if whole > todo else ""
                console.print(f"{todo} runs to do, {jobs} at a time{kept}", highlight=False)
            total = done + todo

        def report_cell(cell: "Cell") -> None:
            nonlocal done
            done += 1
            if cell.error is None and cell.seconds is not None:
                estimate(cell.seconds)
            name = f"{cell.method}, rate {cell.rate:g}, seed {cell.seed}"
            progress(name, done, total)
            if cell.error is not None:
                console.print(f"{name} FAILED: {cell.error}", highlight=False, markup=False)

        return run_plan(plan, folder, jobs=jobs, each=report_cell, estimate=estimate, expect=expect)


def verdict_table(findings: "Findings") -> Group:
    """The numbers as a table that fits 80 columns, and every verdict as a line under it."""
    c, settings, rows = findings.comparison, findings.settings, list[dict[str, str]]()
    reward = c.outcome == "reward"
    end = "reward" if reward else "after"
    for v in c.verdicts:
        gap, ends = v.difference, v.difference_interval
        row = {"method": escape(v.method), "rate": "-" if v.rate is None else f"{v.rate:g}"}
        row[end] = number_or_dash(v.mean)
        if reward:
            row["right"] = number_or_dash(v.success)
        row["lost"] = str(len(v.lost_seeds))
        row["gain"] = "" if gap is None else f"{gap:+.3f}"
        interval = f"{ends.low:+.3f} to {ends.high:+.3f}" if ends else "" if gap is None else "too few seeds"
        row[f"{c.level:.0%}"] = interval
        if c.ceiling is not None:
            words = "{:.2f} to {:.2f}".format(*v.share_interval) if v.share_interval else "too few seeds"
            row["of the oracle's"] = "" if v.share is None else f"{v.share:.2f} ({words})"
        rows.append(row)
    before = {"method": "[dim]before[/dim]", end: number_or_dash(c.verdicts[0].before)}
    rows.insert(0, dict.fromkeys(rows[0], "") | before)
    title = (
        f"{escape(settings['place'])} ({settings['use']}): {c.steps} steps of {settings['rollouts']} "
        f"rollouts, {settings['n_eval']} held-out problems, {settings['samples']} sampled answers each"
    )
    table = Table(title=title, box=box.SIMPLE, pad_edge=False)
    for column in rows[0]:
        is_text = column in ("method", f"{c.level:.0%}", "of the oracle's")
        table.add_column(column, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*row.values())
    verdicts = [f"{escape(v.method)}: {v.words}{_at_its_rate(v, c.baseline)}" for v in c.verdicts[1:]]
    if c.advice:
        verdicts.append(f"For a verdict {c.advice}.")
    if reward and c.rewards and c.rewards[1] > c.full_marks:
        reach = f"{c.full_marks:g}, but rewards reach {c.rewards[1]:g}"
        verdicts.append(f"success_reward: {reach}; give full marks, from which the column right counts")
    return Group(table, *verdicts)


def _at_its_rate(v: "Verdict", baseline: str) -> str:
    ends = v.at_its_rate and v.at_its_rate.interval
    return f" ({ends.low:+.3f} to {ends.high:+.3f} over {baseline} at its rate)" if ends else ""
