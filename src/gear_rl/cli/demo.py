"""``gear demo``: a small language model learns on this machine."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import out_console, show_log
from gear_rl.cli.train import train_with_report
from gear_rl.errors import InputError

_TASKS = " or ".join(f"{task.name} ({task.summary})" for task in all_tasks())


def demo(
    context: typer.Context,
    credit: Annotated[str, typer.Option(help="A method, or package.module:object.")] = "gear",
    task: Annotated[str, typer.Option(help=f"What to learn: {_TASKS}.")] = DEFAULT_TASK,
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the training run.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; else the tier's own.", min=1)] = None,
    n_eval: Annotated[int, typer.Option(help="Held-out problems before and after.", min=1, max=512)] = 512,
    out: Annotated[Path, typer.Option(help="Folder for what it leaves.")] = Path("runs/demo"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
) -> None:
    """Train a small language model on this machine, CPU included, in a few minutes.

    Settings of the method may follow: --credit.alpha 0.5.
    """
    from gear_rl.records import RECORDS, read_records
    from gear_rl.runs.arena import arena_config, task_of
    from gear_rl.runs.run_config import parse_overrides, put_word
    from gear_rl.view.group_notes import is_weight_on_mistake, judge_groups, share_note
    from gear_rl.view.terminal import choose, rollout_panel
    from gear_rl.yaml_values import parse_word

    given: dict[str, Any] = {"credit": parse_word(credit)}
    for key, text in parse_overrides(context.args):
        if not key.startswith("credit."):
            raise InputError(f"--{key}: no such option; see `gear demo --help`")
        put_word(given, key, parse_word(text))
    steps = steps or task_of(task, tier).budgets[tier].steps
    evaluation: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": steps if steps % 3 else steps // 3,
        "eval_on_start": True,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": 128,
    }
    config = arena_config(
        task,
        tier,
        given["credit"],
        seed=seed,
        steps=steps,
        output_dir=str(out),
        logging_steps=1,
        **evaluation,
    )
    show_log()
    train_with_report(config.model_copy(update={"held_out": n_eval}), overwrite=overwrite)
    seen = list(judge_groups(read_records(out / RECORDS)))
    early = [record for record in seen if record.step <= steps // 4 + 1]  # later the student hardly errs
    out_console.print(rollout_panel(choose(early or seen)), share_note(map(is_weight_on_mistake, seen)))
    if shutil.which("gear") is None:
        typer.echo(f"for the command gear: source {shlex.quote(str(Path(sys.prefix, 'bin', 'activate')))}")
