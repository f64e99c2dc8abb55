"""``gear score``: is the credit where the fault is?"""

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import (
    AsJson,
    error_console,
    number_or_dash,
    out_console,
    progress_bar,
    refuse,
    refuse_words,
    say,
    show_log,
)
from gear_rl.errors import InputError

TASKS = all_tasks()
TASK_HELP = " or ".join(task.name for task in TASKS) + "."
TIER_HELP = "How hard it is: easy, default or hard. By itself " + ", ".join(
    f"{task.laboratory_tier} for {task.name}" for task in TASKS
)
_ROLES = ("method", "floor", "control", "ceiling")
"""The order of the rows."""


def score(
    context: typer.Context,
    methods: Annotated[str, typer.Option(help="Comma-separated; controls are added.")] = "gear,rlsd",
    task: Annotated[str, typer.Option(help=TASK_HELP)] = DEFAULT_TASK,
    tier: Annotated[str | None, typer.Option(help=f"{TIER_HELP}.")] = None,
    n: Annotated[int | None, typer.Option(help="Problems; 256 held-out ones, of a file all.")] = None,
    trained: Annotated[
        int | None, typer.Option(min=0, help="The model's own mistakes, after so many steps of GRPO.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="In place of a task: marked faults (.jsonl).")] = None,
    model: Annotated[str | None, typer.Option(help="With --data: folder, hub name, or arena.")] = None,
    max_tokens: Annotated[int, typer.Option(help="With --data: longer completions are set aside.")] = 4096,
    as_json: AsJson = False,
) -> None:
    """Is the credit where the fault is?

    Runs the credit step on completions with a known fault. The faults are planted;
    with --trained they are those that the model makes itself after some training.

    A method may have settings: --methods gear,gear:onset_signal=entropy

    A line of --data is a problem: prompt, the teacher's context
    (privileged_context, solution, answer or ground_truth), a completion, and its
    faulty span: {"start": 10, "end": 12} in characters, or a text that occurs
    there once. A better completion may be given as correct, and decisions, a list
    of such spans, for a second AUC among them. For example:

    {"prompt": "12 + 30 - 2", "solution": "12 + 30 = 42, 42 - 2 = 40",
    "completion": "12 + 30 = 52, 52 - 2 = 50", "fault": {"text": "= 52"}}

    Settings of what the teacher sees and of the passes may follow: --columns.prompt
    question, --chat_template_kwargs.enable_thinking false,
    --per_device_train_batch_size 2.
    """
    from gear_rl.lab.lineup import parse_methods, split_methods
    from gear_rl.lab.oracle import ORACLE

    if data is None:
        refuse(context, "model", "max_tokens", why="goes with --data; the arena's tasks have their own")
        refuse_words(context)
    else:
        refuse(
            context,
            "task",
            "tier",
            "trained",
            why="is for the arena's tasks; leave it out with your own data",
        )
        if model is None:
            why = "give the folder or the hub name of the model to score, or arena"
            raise InputError(f"--model: missing; {why}")
    show_log(logging.WARNING)
    chosen = parse_methods(split_methods(methods))
    for name, credit in chosen.items():
        if credit["name"] == ORACLE["name"]:
            raise InputError(f"--methods: {name!r} is the ceiling of every score already; leave it out")
    from gear_rl.lab.marked import marked_material
    from gear_rl.lab.material import arena_material
    from gear_rl.lab.scoring import check_names
    from gear_rl.lab.scoring import score as score_credit
    from gear_rl.runs.arena import task_of

    check_names(chosen)

    if data is None:
        tier = tier or task_of(task).laboratory_tier
        count = 256 if n is None else n
        if trained is None:
            material = arena_material(task, tier, count)
        else:
            from gear_rl.lab.own_mistakes import own_mistakes

            material = own_mistakes(task, tier, count, trained)
    else:
        material = marked_material(data, str(model), n=n, max_tokens=max_tokens, words=context.args, say=say)
    with progress_bar(error_console, "scoring ") as progress:
        document = score_credit(chosen, material, progress=progress)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        out_console.print(score_table(document))
        out_console.print(score_verdict(document), markup=False, highlight=False)


def score_table(document: dict[str, Any]) -> Table:
    """The numbers as a table for a terminal of 80 columns; floors, controls and the ceiling below the methods."""
    kind = "marked" if "data" in document else "planted" if "trained" not in document else "own"
    methods = sorted(document["methods"].items(), key=lambda item: _ROLES.index(item[1]["role"]))
    partly = any(row["n"] < document["n"] for _, row in methods)
    table = Table(
        title=f"{escape(_title(document))}: {document['n']} {kind} faults", box=box.SIMPLE, pad_edge=False
    )
    table.add_column("", overflow="fold")
    for heading in ("AUC", "95 %", "among\ndecisions", "share", "lift", "rank", "onset", *["n"] * partly):
        table.add_column(heading, justify="right")
    last_role = "method"
    for name, row in methods:
        if row["role"] != last_role:
            last_role = row["role"]
            table.add_section()
            table.add_row(f"[dim]{last_role}s[/dim]")
        ends = row["auc_interval"]
        cells = [number_or_dash(row["auc"]), "-" if ends is None else "-".join(f"{end:.2f}" for end in ends)]
        cells += [number_or_dash(row["auc_choices"]), number_or_dash(row["share"])]
        cells += [number_or_dash(row[key], 1) for key in ("lift", "rank", "distance")]
        table.add_row(escape(name), *cells, *[str(row["n"])] * partly)
    return table


def score_verdict(document: dict[str, Any]) -> str:
    """What the table says, in a few sentences; one names the best control or floor.

    >>> rows = {"gear": {"role": "method", "auc": 0.95, "auc_interval": [0.94, 0.97]},
    ...         "entropy": {"role": "control", "auc": 0.88, "auc_interval": [0.84, 0.92]}}
    >>> print(score_verdict({"methods": rows}))
    gear ranks the fault above 95% of the other tokens (chance is 50%). The best control, entropy, has 88%.
    """
    auc = {name: row["auc"] for name, row in document["methods"].items() if row["auc"] is not None}
    roles = {name: row["role"] for name, row in document["methods"].items()}
    ours, controls = ([n for n in auc if roles[n] in kept] for kept in (("method",), ("floor", "control")))
    if "method" not in roles.values():
        return "Controls alone were scored; name a method beside them, such as gear."
    if not ours:
        return "No method gave credit that can be ranked: every completion was left out."
    best = max(ours, key=auc.__getitem__)
    text = f"{best} ranks the fault above {auc[best]:.0%} of the other tokens (chance is 50%)."
    if not controls:
        return text
    control, ends = max(controls, key=auc.__getitem__), document["methods"][best]["auc_interval"]
    text += f" The best control, {control}, has {auc[control]:.0%}"
    near = auc[control] >= (auc[best] if ends is None else ends[0])
    text += ": finding the fault here does not need the method." if near else "."
    if "data" in document or "trained" in document or control != "surprise":
        return text
    why = "The faults are planted: the student did not draw them, so its -log p alone finds them"
    return f"{text} {why}. Mistakes of its own need not surprise it."


def _title(document: dict[str, Any]) -> str:
    if "data" in document:
        return f"{document['data']}, {document['model']}"
    trained = f" after {document['trained']} steps of GRPO" if "trained" in document else ""
    return f"{document['task']}/{document['tier']}{trained}"
