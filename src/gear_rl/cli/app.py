"""The commands. Heavy imports live inside them, so that ``gear --help`` answers at once."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import DEBUG, error_console, out_console, show_log, user_errors
from gear_rl.cli.export import export_app
from gear_rl.cli.laboratory import add_laboratory
from gear_rl.cli.model import model
from gear_rl.cli.report import report
from gear_rl.cli.teacher import teacher
from gear_rl.errors import InputError
from gear_rl.files import check_output

app = typer.Typer(
    name="gear",
    help="Token-level credit for GRPO: train, look where the credit went, and doubt it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _every_command(
    debug: Annotated[bool, typer.Option("--debug", help=f"Show tracebacks of errors; as {DEBUG}=1.")] = False,
) -> None:
    """Token-level credit for GRPO: train, look where the credit went, and doubt it."""
    if debug:
        os.environ[DEBUG] = "1"


TASKS = all_tasks()
app.add_typer(export_app, name="export")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@user_errors
def train(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file of the run.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check the configuration, print it, and stop.")] = False,
    smoke: Annotated[
        bool, typer.Option(help="Two steps with a tiny model and the recipe's smoke_rows, on any CPU.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run that output_dir holds, and begin anew.")
    ] = False,
) -> None:
    """Train with token credit. Any key of the file may follow as --KEY VALUE; they win over the file.

    Keys: model, dataset, dataset_split, dataset_config, stream, held_out, eval_dataset, eval_split, columns,
    chat, reward, environment, tools, rollout_func, privileged, credit, lora, smoke_rows, and every setting of
    TRL's GRPOConfig and of GEARConfig (learning_rate, teacher_model_kind, ...).
    A method's own settings: --credit.alpha 0.5. A value that is a list or a mapping is written as in YAML.

    gear train --model arena --dataset arena --reward arena --credit gear --max_steps 20
    """
    from gear_rl.runs.config import build_method, load_config

    chosen = load_config(config, context.args)
    if dry_run:
        import yaml

        out_console.print(
            yaml.safe_dump(chosen.model_dump() | chosen.trainer, sort_keys=False), end="", highlight=False
        )
        out_console.print(f"# credit: {build_method(chosen.credit)!r}", highlight=False, soft_wrap=True)
        return
    from gear_rl.cli.progress import ProgressLine

    show_log()
    with ProgressLine(error_console) as line:
        if smoke:
            from gear_rl.runs.smoke import smoke as smoke_run

            facts = smoke_run(chosen, [line], say=_say_smoke)
            _say_smoke(f"{config or 'the run'} works: {facts}")
        else:
            from gear_rl.runs.resolved import how_to_go_on
            from gear_rl.runs.trainer import train as run

            try:
                trainer = run(chosen, [line], overwrite=overwrite, source=config)
            except BaseException as ended:
                if not isinstance(ended, Exception):  # interrupted or terminated
                    ended.add_note(how_to_go_on(chosen))
                raise
            out_console.print(f"saved {trainer.args.output_dir}", highlight=False)


def _say_smoke(text: str) -> None:
    error_console.print(f"smoke: {escape(text)}", highlight=False, soft_wrap=True)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@user_errors
def demo(
    context: typer.Context,
    credit: Annotated[
        str, typer.Option(help="A method of `gear methods`, or package.module:object.")
    ] = "gear",
    task: Annotated[
        str,
        typer.Option(help=f"What to learn: {' or '.join(f'{one.name} ({one.summary})' for one in TASKS)}."),
    ] = DEFAULT_TASK,
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the training run.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps; by default the tier's own budget.")
    ] = None,
    n_eval: Annotated[int, typer.Option(help="Held-out problems before and after.")] = 512,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, records.jsonl and curves.png.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Watch a small language model learn on this machine, CPU included, in a few minutes.

    Settings of the method may follow, as in --credit.alpha 0.5.
    """
    from gear_rl.runs.config import load_config, parse_overrides

    for key, _ in parse_overrides(context.args):
        if not key.startswith("credit."):
            raise InputError(f"--{key}: no such option; see `gear demo --help`")
    named = ["--model", "arena", "--dataset", "arena", "--reward", "arena", "--credit", credit]
    chosen = load_config(None, [*named, *context.args]).credit
    from gear_rl.cli.demo import show_demo
    from gear_rl.lab.demo import checked_demo

    show_log()
    demo = checked_demo(chosen, task=task, tier=tier, seed=seed, steps=steps, n_eval=n_eval)
    show_demo(demo, out, out_console)


@app.command()
@user_errors
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of one method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    markdown: Annotated[bool, typer.Option(help="As a Markdown table.")] = False,
) -> None:
    """List the credit-assignment methods, the signals they need, and their settings."""
    from gear_rl.errors import did_you_mean
    from gear_rl.methods import METHODS
    from gear_rl.runs.config import settings_of
    from gear_rl.traits import distillation_of, engine_settings_of, is_additive

    if name is not None and name not in METHODS:
        raise InputError(f"no method {name!r}; {did_you_mean(name, METHODS)}")
    chosen: dict[str, Any] = {key: cls for key, cls in METHODS.items() if name in (None, key)}
    rows: list[dict[str, Any]] = [
        {
            "name": key,
            "idea": (cls.__doc__ or "").strip().splitlines()[0],
            "needs": list(cls().needs),
            "settings": settings_of(cls),
            "source": cls.source,
            "additive": is_additive(cls()),
            "distils": distillation_of(cls()) is not None,
            "engine": engine_settings_of(cls()),
        }
        for key, cls in chosen.items()
    ]
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    if markdown:
        from gear_rl.runs.config import needs_of

        sys.stdout.write("| method | idea | needs | source |\n|---|---|---|---|\n")
        for row in rows:
            sys.stdout.write(
                f"| `{row['name']}` | {row['idea']} | {needs_of(chosen[row['name']]())} | {row['source']} |\n"
            )
        return
    table = (
        Table("method", "needs", "idea", "source") if name is None else Table("setting", "default", "meaning")
    )
    for row in rows:
        if name is None:
            table.add_row(row["name"], ", ".join(row["needs"]) or "nothing", row["idea"], row["source"])
        for setting in row["settings"] if name is not None else ():
            choices = f" [{' | '.join(setting['choices'])}]" if setting["choices"] else ""
            table.add_row(setting["name"], str(setting["default"]), escape((setting["help"] or "") + choices))
    out_console.print(table)
    if name is not None and rows[0]["engine"]:
        words = ", ".join(f"{key}: {value}" for key, value in rows[0]["engine"].items())
        words = f"Its own settings of the engine, applied unless you set them: {words}"
        out_console.print(words, markup=False, highlight=False, soft_wrap=True)


@app.command()
@user_errors
def view(
    files: Annotated[
        list[Path],
        typer.Argument(help="A record file, such as runs/demo/records.jsonl; --html takes several."),
    ],
    number: Annotated[
        list[int] | None,
        typer.Option(help="Which record, from 0 (may be repeated); else an instructive one."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a picture (.svg or .png) instead.")] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="In the terminal: all that student and teacher were shown.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with every record, for any browser, instead.")
    ] = None,
) -> None:
    """Show where the credit of recorded completions went: in the terminal, as a picture, or as a page."""
    from gear_rl.records import read_records
    from gear_rl.view.terminal import choose, rollout_panel

    for file in files:
        if not file.exists():
            raise InputError(f"{file} does not exist; `gear demo` writes runs/demo/records.jsonl")
    if len(files) > 1 and html is None:
        raise InputError(f"{len(files)} files: only a page shows several; add --html FILE")
    file = files[0]
    try:
        if html is not None:
            from gear_rl.view.html import save_html

            check_output(html, files, "--html")
            with error_console.status(f"packing the records into {html} ..."):
                count = save_html(files, html, title=" and ".join(str(path) for path in files))
            out_console.print(f"wrote {html} ({count} records)", highlight=False)
            return
        records = list(read_records(file))
        for wanted in number or ():
            if not 0 <= wanted < len(records):
                raise InputError(
                    f"--number: {wanted} is not there; {file} has {len(records)} records, from 0"
                )
        chosen = [records[wanted] for wanted in number] if number else [choose(records)]
        if picture is None:
            for record in chosen:
                out_console.print(rollout_panel(record, prompts))
        else:
            from gear_rl.view.picture import save_picture

            check_output(picture, files, "--picture")
            save_picture(chosen, picture)
            out_console.print(f"wrote {picture}", highlight=False)
    except ValueError as error:
        raise InputError(str(error)) from None


@app.command()
@user_errors
def doctor(
    engine: Annotated[str, typer.Option(help="For a run under trl or verl.")] = "trl",
) -> None:
    """Say what this machine has, what will not work here, and how to correct it.

    With --engine verl also whether verl really has our trainers: it hides what goes wrong in a plugin.
    """
    from gear_rl.cli.doctor import examine
    from gear_rl.cli.doctor_verl import examine_verl

    examinations = {"trl": examine, "verl": examine_verl}
    if engine not in examinations:
        raise InputError(f"--engine: {engine!r} is none; choose from {', '.join(examinations)}")
    findings = examinations[engine]()
    table = Table("", "what", "found", "what to do")
    signs = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "broken": "[red]broken[/]"}
    for finding in findings:
        table.add_row(signs[finding.state], finding.subject, escape(finding.fact), escape(finding.fix))
    out_console.print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


add_laboratory(app)
app.command()(model)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(teacher)
app.command()(report)

if __name__ == "__main__":
    app()
