"""``gear train``: a run from a configuration."""

from pathlib import Path
from typing import Annotated

import typer

from gear_rl.cli.console import error_console, say, show_log


def train(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file of the run.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check the configuration, print it, and stop.")] = False,
    smoke: Annotated[bool, typer.Option(help="Two steps with a tiny model, on any CPU.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
) -> None:
    """Train with token credit. Any key of the file may follow as --KEY VALUE, which overrides the file.

    Keys: model, dataset, dataset_split, dataset_config, held_out, eval_dataset, eval_split, columns,
    chat, reward, environment, tools, rollout_func, privileged, credit, lora, smoke_rows, and every setting of
    TRL's GRPOConfig and of GEARConfig (learning_rate, teacher_model_kind, ...).
    A method's own settings: --credit.alpha 0.5. A value that is a list or a mapping is written as in YAML.

    gear train --model arena --dataset arena --reward arena --credit gear --max_steps 20
    """
    from gear_rl.runs.config import build_method, load_config

    chosen = load_config(config, context.args)
    if dry_run:
        import yaml

        typer.echo(yaml.safe_dump(chosen.model_dump() | chosen.trainer, sort_keys=False), nl=False)
        typer.echo(f"# credit: {build_method(chosen.credit)!r}")
        return
    from gear_rl.cli.progress import ProgressLine
    from gear_rl.runs.resolved import how_to_go_on
    from gear_rl.runs.smoke import smoke as smoke_run
    from gear_rl.runs.trainer import train as run

    show_log()
    with ProgressLine(error_console) as line:
        if smoke:
            facts = smoke_run(chosen, [line], say=lambda text: say(f"smoke: {text}"))
            say(f"smoke: {config or 'the run'} works: {facts}")
            return
        try:
            trainer = run(chosen, [line], overwrite=overwrite, source=config)
        except BaseException as ended:
            if not isinstance(ended, Exception):  # interrupted or terminated
                ended.add_note(how_to_go_on(chosen))
            raise
    typer.echo(f"saved {trainer.args.output_dir}")
