"""``gear score`` and ``gear compare``: the laboratory's commands.

Heavy imports live inside them, so that ``gear --help`` answers at once.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gear_rl.arena.task import DEFAULT_TASK, TELLING_TASK, all_tasks
from gear_rl.cli.console import error_console, out_console, show_log, user_errors
from gear_rl.cli.results import command_line
from gear_rl.errors import InputError, did_you_mean
from gear_rl.files import check_output

TASKS = all_tasks()
_TASK_HELP = " or ".join(task.name for task in TASKS) + "."
_FAULT_HELP = "; ".join(
    f"{task.name}: " + ", ".join(f"{kind} ({what})" for kind, what in task.faults.items()) for task in TASKS
)
_TIER_HELP = "How hard it is: easy, default or hard."
_OWN_TIERS = " By itself " + ", ".join(f"{task.laboratory_tier} for {task.name}" for task in TASKS) + "."


def add_laboratory(app: typer.Typer) -> None:
    """Add these commands to ``gear``."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(score)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(compare)


@user_errors
def score(
    context: typer.Context,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them; floors and controls come by themselves.")
    ] = "gear,rlsd",
    task: Annotated[str, typer.Option(help=_TASK_HELP)] = DEFAULT_TASK,
    tier: Annotated[str | None, typer.Option(help=_TIER_HELP + _OWN_TIERS)] = None,
    fault: Annotated[
        str | None, typer.Option(help=f"What is planted, by itself the first of a task. {_FAULT_HELP}.")
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(help="Problems, one fault in each: 256 held-out ones; of a file the first, else all."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="In place of a task: your completions with a marked fault (.jsonl)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --data: the model that is scored; a folder, a hub name, or arena."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="With --data: longer completions are set aside.")] = 4096,
    export: Annotated[
        Path | None, typer.Option(help="Write the task's planted faults as such a file, and stop (chain).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers, as JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page (.html) with table and figure.")] = None,
) -> None:
    """Does the credit lie where the fault is? Runs the engine on completions with a known fault, trains nothing.

    A method may carry settings: --methods gear,gear:onset_signal=log_ratio

    A line of --data is a problem: prompt, what the teacher sees (privileged_context, solution, answer or
    ground_truth), a completion, and its faulty span: {"start": 10, "end": 12} in characters, or a text that
    stands there once. If you have a better completion, give it as correct. With decisions, a list of such spans
    (the results of a sum), there is a second AUC, among them alone: which decision was wrong. For example:

    {"prompt": "12 + 30 - 2", "solution": "12 + 30 = 42, 42 - 2 = 40",
    "completion": "12 + 30 = 52, 52 - 2 = 50", "fault": {"text": "= 52"}}

    Settings may follow as in gear train: --columns.prompt question, --chat_template_kwargs.enable_thinking false,
    --per_device_train_batch_size 2.
    """
    from gear_rl.lab.compare import parse_methods, split_methods

    _check_apart(context, data, export)
    if data is not None and report is not None:
        _check_report(report, data)
    show_log(logging.WARNING)  # every method's trainer would say the same
    tier = tier or _tier_of(task)
    if export is not None:
        _export(export, task, tier, 256 if n is None else n)
        return
    chosen = parse_methods(split_methods(methods))
    from gear_rl.cli.score import score_table, scoring_bar
    from gear_rl.lab.score import score as run

    if data is None:
        from gear_rl.lab.score import arena_material

        material = arena_material(task, tier, 256 if n is None else n, fault)
    else:
        material = _marked(data, model, n, max_tokens, context.args)
    with scoring_bar(error_console) as progress:
        document, rows = run(chosen, material, progress=progress)
    if report is not None:
        _save_score(document, rows, sorted(chosen), report)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        out_console.print(score_table(document))


def _export(file: Path, task: str, tier: str, n: int) -> None:
    from gear_rl.lab.marked import export

    count = export(file, task, tier, n)
    out_console.print(f"wrote {count} completions to {file}", highlight=False, soft_wrap=True)


def _marked(data: Path, model: str | None, n: int | None, max_tokens: int, words: list[str]) -> Any:
    """The completions of the user's file; the lines that are of no use are said on the error console."""
    from gear_rl.lab.marked import marked_material

    if model is None:
        raise InputError("--model: missing; give the folder or the hub name of the model to score, or arena")

    def say(text: str) -> None:
        error_console.print(text, markup=False, highlight=False, soft_wrap=True)

    return marked_material(data, model, n=n, max_tokens=max_tokens, words=words, say=say)


def _save_score(document: dict[str, Any], rows: Any, methods: list[str], file: Path) -> None:
    from gear_rl.lab.report import findings, save_report
    from gear_rl.lab.score import places_of, title_of

    page = findings(
        title=f"Where credit lands: {title_of(document)}",
        command=command_line(),
        localisations=[places_of(document, rows)],
        settings={"n": document["n"], "methods": methods},
        versions=document["versions"],
    )
    save_report(page, file)
    error_console.print(f"wrote {file}", highlight=False)


def _check_apart(context: typer.Context, data: Path | None, export: Path | None) -> None:
    """Options of a task and options of a file do not go together."""
    given = [name for name in context.params if _is_given(context, name)]
    if data is not None:
        for name in ("task", "tier", "fault", "export"):
            if name in given:
                raise InputError(f"--{name}: is for the arena's tasks; leave it out with --data")
        return
    for name in ("model", "max_tokens"):
        if name in given:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option}: goes with --data; the arena's tasks have their own model and length"
            )
    if export is not None and ("report" in given or "as_json" in given):
        raise InputError("--export: writes the file and scores nothing; leave out --json and --report")
    _no_further_options(context)


def _no_further_options(context: typer.Context) -> None:
    if context.args:
        options = [f"--{name.replace('_', '-')}" for name in context.params]
        raise InputError(f"{context.args[0]}: no such option; {did_you_mean(context.args[0], options)}")


def _own_plan(
    context: typer.Context, config: Path | None, methods: list[str], options: dict[str, Any]
) -> Any:
    """The plan of a comparison on the user's own run."""
    from gear_rl.lab.own import plan_of_run
    from gear_rl.runs.config import load_config

    for name in ("task", "tier", "rollouts"):
        if _is_given(context, name):
            raise InputError(f"--{name}: is for the arena's tasks; leave it out with a run of your own")
    show_log(logging.WARNING)
    return plan_of_run(load_config(config, context.args), methods, **options)


def _check_report(report: Path, data: Path) -> None:
    try:
        check_output(report, [data], "--report")
    except ValueError as error:
        raise InputError(str(error)) from None


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@user_errors
def compare(
    context: typer.Context,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them; uniform (GRPO) is always among them.")
    ] = "gear,shuffled",
    seeds: Annotated[int, typer.Option(help="Runs of each method, seeds from 0.")] = 3,
    task: Annotated[str, typer.Option(help=_TASK_HELP)] = TELLING_TASK,
    tier: Annotated[str | None, typer.Option(help=_TIER_HELP + _OWN_TIERS)] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps; by default the tier's own budget.")
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option(help="Rollouts per step; by default the tier's own.")
    ] = None,
    rates: Annotated[
        int,
        typer.Option(
            help="Learning rates to try for each method, a factor of two apart, on seeds and problems of their "
            "own; more where the best lies at an edge. 1 takes the tier's own rate for all."
        ),
    ] = 4,
    config: Annotated[
        Path | None,
        typer.Option(help="In place of a task: the YAML file of your own run, as for gear train."),
    ] = None,
    n_eval: Annotated[
        int | None,
        typer.Option(help="Held-out problems before and after each run; 256, if there are so many."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Sampled answers to each of them, before and after; 4, of your own run 1."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time; by default one per core, of your own run 1.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder: one file per run, comparison.json, report.html and plots.")
    ] = Path("runs/compare"),
    as_json: Annotated[bool, typer.Option("--json", help="The comparison, as JSON.")] = False,
) -> None:
    """Does a method help, and how much of what there is to gain? Trains every method at its own best learning
    rate, with every seed, on one budget of rollouts, and compares in words.

    A control that is told the true advantage of every token (oracle) is the reference. Where no formula knows it,
    rollouts branch off from every token, which takes its time: a run of your own has it only if you name it.

    Runs that are finished in the folder are not run again; what failed is. A method may carry settings, which are
    compared under that name or one of yours: --methods gear,blaming=gear:sign_mode=aware,shuffled. So may its
    teacher: --methods live=gear:teacher_model_kind=live; and a placebo's method: --methods shuffled:of.alpha=1

    In place of a task your own run: --config run.yaml, or --model M --dataset D --reward R; its other settings
    may follow as in gear train. Right is what has success_reward at least, on the run's own held-out rows.
    """
    from gear_rl.cli.compare import run_plan_with_bar, verdict_table
    from gear_rl.lab.compare import compared, plan_of, save, split_methods

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs: {jobs}; give 1 or more")
    chosen = split_methods(methods)
    options: dict[str, Any] = {"seeds": seeds, "steps": steps, "rates": rates}
    if config is not None or any(word.startswith(("--model", "--dataset")) for word in context.args):
        plan = _own_plan(context, config, chosen, options | {"n_eval": n_eval, "samples": samples})
        jobs = jobs or 1
    else:
        _no_further_options(context)
        given = {"n_eval": n_eval, "samples": samples, "rollouts": rollouts}
        options |= {name: value for name, value in given.items() if value is not None}
        plan = plan_of(chosen, task=task, tier=tier or _tier_of(task), **options)
    rows, tuned = run_plan_with_bar(
        plan, out / "cells", jobs=jobs or os.cpu_count() or 1, console=error_console
    )
    comparison = compared(plan, rows, tuned, command=command_line())
    save(comparison, out)
    if as_json:
        sys.stdout.write(json.dumps(comparison, indent=1) + "\n")
    else:
        out_console.print(verdict_table(comparison))
    error_console.print(f"wrote {out}/comparison.json, report.html and plots", highlight=False)
    failures = comparison["comparisons"][0]["failed"]
    if failures:
        error_console.print(f"{len(failures)} runs failed; run the same command again", highlight=False)
        raise typer.Exit(1)


def _tier_of(task: str) -> str:
    from gear_rl.runs.arena import known_task

    return known_task(task).laboratory_tier
