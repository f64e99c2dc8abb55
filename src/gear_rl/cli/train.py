"""``gear train``: a run from a configuration."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gear_rl.cli.console import error_console, say, show_log

if TYPE_CHECKING:
    from gear_rl.runs.run_config import RunConfig


def train(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="YAML file of the run.")] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Check the configuration and rows, print it, and stop.")
    ] = False,
    smoke: Annotated[bool, typer.Option(help="Two steps with a tiny model, on any CPU.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
) -> None:
    """Train with token credit.

    Any key of the file may follow as --KEY VALUE, which overrides the file:

    \b
    model      model, lora, model_init_kwargs
    data       dataset, dataset_config, dataset_split, columns, chat,
               held_out, eval_dataset, eval_split, smoke_rows
    reward     reward, environment, tools, rollout_func
    credit     credit, credit.SETTING (gear methods NAME), privileged,
               teacher_*, privileged_*, answer_pattern
    training   output_dir, max_steps, learning_rate, num_generations,
               max_completion_length, ... (every setting of TRL's GRPOConfig)
    records    record_file, record_max_mb, report_to, logging_steps,
               log_completions (coloured in wandb and trackio)
    folder     resume_from_checkpoint, save_steps, overwrite_output_dir

    The flags of TRL's own scripts (--model_name_or_path, --use_peft) work too.
    A value that is a list or a mapping is written as in YAML.

    \b
    gear train --model arena --dataset arena --reward arena --max_steps 20
    """
    from gear_rl.method_builder import build_method
    from gear_rl.runs.run_config import load_config, load_outline
    from gear_rl.runs.trl_run import check_folder, check_names, check_trackers

    outline = load_outline(config, context.args)
    check_names(outline)
    if not (dry_run or smoke):
        check_folder(outline, config, overwrite)
    show_log()
    chosen = load_config(config, context.args)
    if dry_run or smoke:
        check_trackers(chosen)
    if dry_run:
        from gear_rl.runs.trl_run import check_run, load_data
        from gear_rl.yaml_values import yaml_text

        check_run(chosen, load_data(chosen)[0])
        typer.echo(yaml_text(chosen.model_dump() | chosen.trainer), nl=False)
        typer.echo(f"# credit: {build_method(chosen.credit)!r}")
        typer.echo("# read: the rows; not done: the model is not loaded, no reward is called (--smoke does)")
        return
    if smoke:
        from gear_rl.cli.progress import ProgressLine
        from gear_rl.runs.smoke import smoke as smoke_run

        facts = smoke_run(chosen, [ProgressLine(error_console)], say=lambda text: say(f"smoke: {text}"))
        say(f"smoke: {config or 'the run'} works: {facts}")
        return
    train_with_report(chosen, overwrite=overwrite, source=config)


def train_with_report(config: "RunConfig", *, overwrite: bool, source: Path | None = None) -> None:
    """Train with a line for every step, and leave a page of the run."""
    from gear_rl.cli.progress import ProgressLine
    from gear_rl.health import conclusion
    from gear_rl.records import RECORDS
    from gear_rl.runs.resolved import how_to_go_on
    from gear_rl.runs.trl_run import train as run
    from gear_rl.view.run import save_run_page
    from gear_rl.view.trackers import track_credit

    def prepare(trainer: Any) -> None:
        if trainer.args.log_completions:
            track_credit(trainer)

    line = ProgressLine(error_console)
    try:
        trainer = run(config, [line], overwrite=overwrite, source=source, prepare=prepare)
    except BaseException as ended:
        if not isinstance(ended, Exception):  # interrupted or terminated
            ended.add_note(how_to_go_on(config))
        raise
    if trainer.is_world_process_zero():
        folder, records = trainer.args.output_dir, trainer.run_folder.records
        ways = list[str]()
        try:
            ways.append(f"open {save_run_page(Path(folder))}")
        except (OSError, ValueError) as error:  # a page that cannot be made does not undo the run
            say(f"no page of the run: {error}")
        typer.echo(conclusion(trainer.state.log_history))
        shown = records and (records.parent if records.name == RECORDS else records)
        ways += [f"gear view {shlex.quote(str(shown))}"] if shown else []
        typer.echo("; ".join(filter(None, (f"saved {folder}", ", or: ".join(ways)))))
