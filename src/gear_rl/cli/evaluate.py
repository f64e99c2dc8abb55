"""``gear eval``: what a benchmark's own tool scores of a checkpoint."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from gear_rl.cli.console import error_console, out_console, show_log, user_errors
from gear_rl.cli.results import AsJson, command_line
from gear_rl.errors import InputError


@user_errors
def evaluate(
    model: Annotated[
        str,
        typer.Option(help="A folder (an adapter's too), a hub name or smollm2; or its name at --endpoint."),
    ],
    suite: Annotated[
        str, typer.Option(help="bfcl, tau2, or a task of inspect-evals: gsm8k, math, aime2024, ...")
    ],
    limit: Annotated[
        int | None, typer.Option(help="The first cases alone; of bfcl and tau2, in every category.")
    ] = None,
    categories: Annotated[
        str,
        typer.Option(
            help="Names with commas between: of bfcl simple_python, live, ... (non_live); of tau2 its domains "
            "(airline,retail,telecom)."
        ),
    ] = "",
    user_model: Annotated[
        str | None,
        typer.Option(
            help="Of tau2: who plays the user, as litellm names it (gpt-4.1); else the model itself."
        ),
    ] = None,
    user_endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI endpoint that has --user-model.")
    ] = None,
    tools: Annotated[
        bool,
        typer.Option(
            "--tools", help="Of bfcl: functions in the request's own field, if the server knows it."
        ),
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="JSON lines in the form of the suite's hub dataset, in its place.")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="The same for the examples that the task shows.")
    ] = None,
    task_arg: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument of the inspect task (fewshot=5), an option of tau2 run (num-trials=4); repeatable."
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI endpoint that runs already: http://127.0.0.1:8000/v1.")
    ] = None,
    server: Annotated[
        str, typer.Option(help="What serves the model: transformers or vllm.")
    ] = "transformers",
    server_args: Annotated[str, typer.Option(help="More words for it: '--max-model-len 4096'.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option(help="Of an answer; else the server's (transformers: 1024).")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Else the tool's (bfcl: 0.001) or the server's.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at a time; vLLM gains by more.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="An empty folder for eval.json and the tool's files (runs/eval/SUITE)."),
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option(help="A virtual environment that has the tool, instead of one made in the cache."),
    ] = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="Let the tool keep the network while it runs what the model wrote: tau2 always, bfcl's scorer "
            "where it cannot be taken away.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a checkpoint with a benchmark's own tool, in an environment of that tool's own.

    The model is served on this machine while the tool asks it. Scores are the tool's, with 95 % intervals over
    cases. bfcl brings its data along; most tasks of inspect-evals take theirs from a model hub, or from --data.
    """
    from gear_rl.experiments.evaluate import evaluate as run
    from gear_rl.experiments.suites.request import Request

    show_log(logging.WARNING)
    request = Request(
        suite=suite,
        folder=out or Path("runs/eval") / Path(suite).name,
        limit=limit,
        max_tokens=max_tokens,
        temperature=temperature,
        concurrency=concurrency,
        categories=[name.strip() for name in categories.split(",") if name.strip()],
        tools=tools,
        data=data,
        examples=examples,
        settings=dict(map(_setting, task_arg or ())),
        network=network,
        user_model=user_model,
        user_endpoint=user_endpoint,
    )
    document = run(
        request,
        model,
        endpoint=endpoint,
        server=server,
        server_options=_words(server_args),
        env=env,
        command=command_line(),
        say=lambda text: error_console.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    out_console.print(score_table(document))
    failed = sum(row["errors"] for row in document["scores"])
    if failed:
        error_console.print(
            f"{failed} {document['failures']}; {request.folder / 'tool.log'} says why", highlight=False
        )


def score_table(document: dict[str, Any]) -> Table:
    """The rows of an evaluation, for the terminal.

    >>> row = {"category": "parallel", "metric": "accuracy", "n": 4, "score": 0.25, "interval": [0.05, 0.7]}
    >>> score_table({"suite": "bfcl", "model": "smollm2", "scores": [row]}).row_count
    1
    """
    table = Table(title=f"{escape(document['model'])} on {escape(document['suite'])}")
    for column in ("", "metric", "n", "score", "95 %"):
        table.add_column(column, justify="left" if column in ("", "metric") else "right")
    for row in document["scores"]:
        span = " to ".join(f"{end:.3f}" for end in row["interval"])
        table.add_row(
            escape(row["category"]), escape(row["metric"]), str(row["n"]), f"{row['score']:.3f}", span
        )
    return table


def _setting(word: str) -> tuple[str, Any]:
    from gear_rl.runs.plain_yaml import parse_word

    name, equals, value = word.partition("=")
    if not name or not equals:
        raise InputError(f"--task-arg: {word!r} is no setting; write it as in fewshot=5")
    return name, parse_word(value)


def _words(text: str) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"--server-args: {text!r}: {error}; close the quotes") from None
