"""The commands of ``gear``. They import heavy libraries inside, so that ``gear --help`` is fast."""

import os
from typing import Annotated, Any

import typer

from gear_rl.cli.compare import compare
from gear_rl.cli.console import DEBUG, user_errors
from gear_rl.cli.demo import demo
from gear_rl.cli.doctor import doctor
from gear_rl.cli.export import verl
from gear_rl.cli.init import init
from gear_rl.cli.methods import methods
from gear_rl.cli.model import model
from gear_rl.cli.report import report
from gear_rl.cli.score import score
from gear_rl.cli.teacher import teacher
from gear_rl.cli.train import train
from gear_rl.cli.view import view

_KEYS_MAY_FOLLOW: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "token_normalize_func": lambda name: name.replace("_", "-"),  # --dry_run, as keys are written
}
_PURPOSE = "Token-level credit for GRPO: train, look at the credit, and compare it with controls."
_EXPORT = "Take a configuration of `gear train` to another engine."
app = typer.Typer(
    name="gear", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=_PURPOSE
)
export = typer.Typer(no_args_is_help=True, help=_EXPORT)


@app.callback(help=_PURPOSE)
def _every_command(
    debug: Annotated[bool, typer.Option("--debug", help=f"Show tracebacks of errors; as {DEBUG}=1.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


export.callback(help=_EXPORT)(lambda: None)
export.command(context_settings=_KEYS_MAY_FOLLOW)(user_errors(verl))
for _command in (train, demo, score, compare, teacher):
    app.command(context_settings=_KEYS_MAY_FOLLOW)(user_errors(_command))
for _command in (init, methods, view, doctor, model, report):
    app.command()(user_errors(_command))
app.add_typer(export, name="export")

if __name__ == "__main__":
    app()
