"""``gear export``: a configuration of ``gear train`` for another engine."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gear_rl.cli.console import say, show_log


def verl(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file of the run, as for gear train.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the parquet files and launch.sh.")] = Path(
        "runs/verl"
    ),
    gpus: Annotated[int, typer.Option(help="GPUs on each node.", min=1)] = 8,
    prompt_tokens: Annotated[int, typer.Option(help="Longest prompt, with tools.", min=1)] = 1024,
) -> None:
    """Write verl's parquet files, reward and launch command.

    Any key of the file may follow as --KEY VALUE.

    Reads the same dataset as gear train; TRL need not be installed. What verl has
    no counterpart for is refused by name, or listed at the top of launch.sh.

    gear export verl --config examples/math_qwen3_4b.yaml --out runs/verl --gpus 8
    """
    from gear_rl.runs.verl.launch_files import export, read_run

    show_log()
    done = export(read_run(config, context.args), out, gpus=gpus, prompt_tokens=prompt_tokens, say=say)
    for name, rows in done.items():
        typer.echo(f"wrote {out / name}.parquet ({rows} rows)")
    typer.echo(
        f"start it, where verl is installed, with: bash {shlex.quote(str(out.resolve() / 'launch.sh'))}"
    )
