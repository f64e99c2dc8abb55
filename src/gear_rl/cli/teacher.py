"""``gear teacher``: is the teacher of a run informed?"""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from gear_rl.cli.console import AsJson, error_console, progress_bar, show_log


def teacher(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="A folder, hub name, smollm2, or arena.")] = None,
    data: Annotated[str | None, typer.Option(help="Rows with a privileged context; as --dataset.")] = None,
    config: Annotated[Path | None, typer.Option(help="In their place: the file of a gear train run.")] = None,
    reward: Annotated[str | None, typer.Option(help="As in gear train; splits right from wrong.")] = None,
    n: Annotated[int, typer.Option(help="Rows, from the first.")] = 32,
    samples: Annotated[int, typer.Option(help="Completions that are sampled for each row.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Is the teacher informed?

    Samples completions and scores them under their own privileged context, under
    two other rows', and under none; trains nothing.

    Any context changes a model's probabilities. A teacher that reads it prefers
    the row's own context to others'; and, with a reward, right completions gain
    more from it than wrong ones.

    Settings may follow as in gear train: --privileged_column answer, --max_completion_length 64,
    --teacher_model PATH, --columns.prompt question.
    """
    from gear_rl.lab.teacher_scores import examine, teacher_config
    from gear_rl.lab.teacher_verdict import as_dict, sentences

    show_log(logging.WARNING)
    run = teacher_config(config, model, data, reward, context.args)
    with progress_bar(error_console) as progress:
        found, about = examine(run, n=n, samples=samples, seed=seed, progress=progress)
    if as_json:
        typer.echo(json.dumps(about | as_dict(found), indent=2))
    else:
        typer.echo("\n".join(sentences(found)))
