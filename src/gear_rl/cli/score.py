"""``gear score``: does the credit lie where the fault is?"""

import json
import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import Pace, command_line, error_console, out_console, show_log, user_errors
from gear_rl.errors import InputError, did_you_mean
from gear_rl.files import check_output

TASKS = all_tasks()
TASK_HELP = " or ".join(task.name for task in TASKS) + "."
TIER_HELP = "How hard it is: easy, default or hard. By itself " + ", ".join(
    f"{task.laboratory_tier} for {task.name}" for task in TASKS
)
_ROLES = ("method", "floor", "control", "ceiling")
"""The order of the rows."""


@user_errors
def score(
    context: typer.Context,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them; floors and controls come by themselves.")
    ] = "gear,rlsd",
    task: Annotated[str, typer.Option(help=TASK_HELP)] = DEFAULT_TASK,
    tier: Annotated[str | None, typer.Option(help=f"{TIER_HELP}.")] = None,
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

    refuse(context, ("task", "tier") if data is not None else ("model", "max_tokens"), data)
    if data is not None and report is not None:
        try:
            check_output(report, [data], "--report")
        except ValueError as error:
            raise InputError(str(error)) from None
    show_log(logging.WARNING)  # every method's trainer would say the same
    chosen = parse_methods(split_methods(methods))
    from gear_rl.lab.score import arena_material, places_of
    from gear_rl.lab.score import score as run

    if data is None:
        material = arena_material(task, tier or tier_of(task), 256 if n is None else n)
    else:
        from gear_rl.lab.marked import marked_material

        if model is None:
            raise InputError(
                "--model: missing; give the folder or the hub name of the model to score, or arena"
            )

        def say(text: str) -> None:
            error_console.print(text, markup=False, highlight=False, soft_wrap=True)

        material = marked_material(data, model, n=n, max_tokens=max_tokens, words=context.args, say=say)
    with scoring_bar(error_console) as progress:
        document, rows = run(chosen, material, progress=progress)
    if report is not None:
        from gear_rl.lab.report import findings, save_report

        page = findings(
            title=f"Where credit lands: {_title(document)}",
            command=command_line(),
            localisations=[places_of(document, rows)],
            settings={"n": document["n"], "methods": sorted(chosen)},
            versions=document["versions"],
        )
        save_report(page, report)
        error_console.print(f"wrote {report}", highlight=False)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        out_console.print(score_table(document))


def refuse(context: typer.Context, names: tuple[str, ...], own: object) -> None:
    """``InputError`` for options of a task beside the user's ``own`` data or run, and for the reverse."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise InputError(
                f"--{option}: goes with --data; the arena's tasks have their own model and length"
                if own is None
                else f"--{option}: is for the arena's tasks; leave it out with your own data"
            )
    if own is None and context.args:
        options = [f"--{name.replace('_', '-')}" for name in context.params]
        raise InputError(f"{context.args[0]}: no such option; {did_you_mean(context.args[0], options)}")


def tier_of(task: str) -> str:
    """The tier of a task in which methods can be distinguished."""
    from gear_rl.runs.arena import known_task

    return known_task(task).laboratory_tier


@contextmanager
def scoring_bar(console: Console, what: str = "scoring ") -> Generator[Callable[[str, float, int], None]]:
    """A bar in a terminal, elsewhere a line now and then.

    Gives what moves it: a name (of a method), the problems that are done, and all of them.
    """
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        work, pace = bar.add_task(what), Pace(console)

        def advance(name: str, done: float, total: int) -> None:
            bar.update(work, description=f"{what}{name}", completed=done, total=total)
            pace(f"{what}{name}: {done:g} of {total}")

        yield advance


def score_table(document: dict[str, Any]) -> Table:
    """The numbers, for the terminal: what they are compared with below the methods."""
    kind = "marked" if "data" in document else "planted"
    table = Table(title=f"{escape(_title(document))}: {document['n']} {kind} faults")
    columns = ["", "AUC", "95 %", "among decisions", "share on the fault", "lift", "rank", "nearest onset"]
    if any(row["n"] < document["n"] for row in document["methods"].values()):
        columns.append("n")  # some say nothing of a method
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "95 %") else "right")
    last = None
    for name, row in sorted(document["methods"].items(), key=lambda item: _ROLES.index(item[1]["role"])):
        if last is not None and row["role"] != last:
            table.add_section()
        last = row["role"]
        role = "" if row["role"] == "method" else f" ({row['role']})"
        span = row["auc_interval"]
        cells = [
            f"{escape(name)}{role}",
            _number(row["auc"], 3),
            "-" if span is None else " to ".join(_number(end, 3) for end in span),
            _number(row["auc_choices"], 3),
            _number(row["share"], 3),
            *(_number(row[key], 1) for key in ("lift", "rank", "distance")),
            str(row["n"]),
        ]
        table.add_row(*cells[: len(columns)])
    return table


def _title(document: dict[str, Any]) -> str:
    if "data" in document:
        return f"{document['data']}, {document['model']}"
    return f"{document['task']}/{document['tier']}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
