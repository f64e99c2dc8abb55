"""``gear train``: a run from a configuration."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gear_rl.cli.console import error_console, out_console, show_log, user_errors


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
