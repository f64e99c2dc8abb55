"""``gear demo``: a small language model learns on this machine."""

import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gear_rl.arena.task import DEFAULT_TASK, all_tasks
from gear_rl.cli.console import out_console, show_log, table_of
from gear_rl.errors import InputError
from gear_rl.files import replace_file

_TASKS = " or ".join(f"{task.name} ({task.summary})" for task in all_tasks())


def demo(
    context: typer.Context,
    credit: Annotated[str, typer.Option(help="A method, or package.module:object.")] = "gear",
    task: Annotated[str, typer.Option(help=f"What to learn: {_TASKS}.")] = DEFAULT_TASK,
    tier: Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the training run.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; else the tier's own.")] = None,
    n_eval: Annotated[int, typer.Option(help="Held-out problems before and after.")] = 512,
    out: Annotated[Path, typer.Option(help="Folder for what it leaves.")] = Path("runs/demo"),
) -> None:
    """Train a small language model on this machine, CPU included, in a few minutes.

    Settings of the method may follow: --credit.alpha 0.5. An earlier demo in the
    folder is replaced.
    """
    from gear_rl.cli.progress import ProgressLine
    from gear_rl.engines.folder import RunFolder
    from gear_rl.lab.training import Between
    from gear_rl.method_builder import build_method
    from gear_rl.records import read_records
    from gear_rl.runs.arena import arena_config, sampled_rewards, task_of
    from gear_rl.runs.config import parse_overrides, put_word
    from gear_rl.runs.machine import use_few_threads
    from gear_rl.runs.resolved import RECORDS
    from gear_rl.runs.trainer import train
    from gear_rl.versions import versions
    from gear_rl.view.groups import is_weight_on_mistake, judge_groups, share_note
    from gear_rl.view.run import save_run_page
    from gear_rl.view.terminal import choose, rollout_panel
    from gear_rl.yaml_values import parse_word

    given: dict[str, Any] = {"credit": parse_word(credit)}
    for key, text in parse_overrides(context.args):
        if not key.startswith("credit."):
            raise InputError(f"--{key}: no such option; see `gear demo --help`")
        put_word(given, key, parse_word(text))
    settings = given["credit"]
    show_log()
    arena = task_of(task, tier)
    budget = arena.budgets[tier]
    if not 1 <= n_eval <= len(arena.held_out):
        number = len(arena.held_out)
        raise InputError(f"--n-eval: {n_eval} is not possible; there are {number} held-out problems")
    if steps is not None and steps < 1:
        raise InputError(f"--steps: {steps} is no training; give 1 or more")
    steps = budget.steps if steps is None else steps
    file, folder = out / "summary.json", RunFolder(out, RECORDS)
    again = file.exists()
    if not again and {*folder.leftovers()} - {str(folder.records)}:
        raise InputError(f"--out: {out} holds a run that is no demo; give another folder")
    method, threads = build_method(settings), use_few_threads()
    begin = time.perf_counter()
    problems = arena.rows(tier, num=n_eval, first_seed=arena.held_out.start)
    place: dict[str, Any] = {"output_dir": str(out), "per_device_eval_batch_size": 128}
    config = arena_config(arena.name, tier, settings, seed=seed, steps=steps, **place)
    held_out, few = list[tuple[int, float]](), min(128, n_eval)  # step and accuracy; problems in between

    def measure(trainer: Any, count: int) -> dict[str, float]:
        [rewards] = sampled_rewards(partial(arena.solve, trainer), problems[:count], seed=seed)
        accuracy = sum(rewards) / len(rewards)
        held_out.append((trainer.state.global_step, accuracy))
        line.note(accuracy=accuracy)
        return {"accuracy": round(accuracy, 4)}

    def prepare(trainer: Any) -> None:
        with out_console.status(f"solving {n_eval} held-out problems before training ..."):
            measure(trainer, n_eval)
        trainer.add_callback(Between(partial(measure, trainer), steps=steps, count=few))

    out_console.print(
        f"[bold]gear demo[/]: {arena.name} ({tier}), credit [bold]{method.name}[/], seed {seed}, {steps} "
        f"steps of {budget.rollouts_per_step} completions, {threads} thread{'s' if threads > 1 else ''}"
    )
    with ProgressLine(out_console) as line:
        trainer = train(config, [line], overwrite=again, prepare=prepare)
    with out_console.status(f"solving {n_eval} held-out problems after training ..."):
        measure(trainer, n_eval)
    (_, before), *between, (_, after) = held_out
    history = trainer.state.log_history
    summary: dict[str, Any] = {
        "task": arena.name,
        "tier": tier,
        "method": method.name,
        "credit": repr(method),
        "steps": steps,
        "seed": seed,
        "accuracy_before": round(before, 4),
        "accuracy_after": round(after, 4),
        "n_eval": n_eval,
        "held_out": [{"step": step, "n": few, "accuracy": round(share, 4)} for step, share in between],
        "held_out_sha256": arena.fingerprint(tier, n_eval),
        "seconds": round(time.perf_counter() - begin, 1),
        "seconds_training": round(history[-1]["train_runtime"], 1),
        "seconds_credit": round(sum(entry.get("gear/credit_seconds", 0.0) for entry in history), 1),
        "threads": threads,
        "versions": versions(),
    }
    replace_file(file, (json.dumps(summary, indent=2) + "\n").encode())
    history += [{"step": step, "eval_reward": share} for step, share in held_out]
    trainer.save_state()
    page = save_run_page(out)
    seen = list(judge_groups(read_records(out / RECORDS)))
    early = [record for record in seen if record.step <= steps // 4 + 1]  # later the student hardly errs
    out_console.print(rollout_panel(choose(early or seen)), share_note(map(is_weight_on_mistake, seen)))
    row = {"method": method.name, "seed": str(seed), "steps": str(steps), "before": f"{before:.3f}"}
    row |= {"after": f"{after:.3f}", "gain": f"{after - before:+.3f}", "seconds": f"{summary['seconds']:.0f}"}
    title = f"{n_eval} held-out problems, sampled at temperature 1"
    out_console.print(table_of(title, [row], left=("method",)))
    out_console.print(f"saved {out}; open {page}, or: gear view {out}", soft_wrap=True)
    if shutil.which("gear") is None:
        out_console.print(f"for the command gear: source {Path(sys.prefix, 'bin', 'activate')}")
