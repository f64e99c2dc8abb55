"""``gear plan``: what a step should cost, and how far off that arithmetic is where it can be checked.

Heavy imports live inside the command, so that ``gear --help`` answers at once.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from gear_rl.cli.console import user_errors
from gear_rl.cli.plan_tables import plan_cells
from gear_rl.cli.results import AsJson, Out, command_line, deliver
from gear_rl.errors import InputError
from gear_rl.files import check_output
from gear_rl.strict_json import parse_json


@user_errors
def plan(
    model: Annotated[
        str, typer.Option(help="A model of the table, such as Qwen/Qwen3-4B, or a local folder.")
    ] = "Qwen/Qwen3-4B",
    gpus: Annotated[int, typer.Option(help="How many GPUs.")] = 8,
    gpu: Annotated[str, typer.Option(help="Which: a100, h100 or h200.")] = "h200",
    tokens: Annotated[int, typer.Option(help="Tokens of a completion, on average.")] = 8192,
    prompt: Annotated[int, typer.Option(help="Tokens of the student's prompt.")] = 512,
    teacher_prompt: Annotated[int, typer.Option(help="Tokens of the teacher's prompt.")] = 1536,
    group: Annotated[int, typer.Option(help="Completions of a prompt.")] = 8,
    prompts: Annotated[int, typer.Option(help="Prompts of a step.")] = 32,
    concurrency: Annotated[
        int, typer.Option(help="Completions that a GPU generates at a time, at most.")
    ] = 96,
    micro_batch: Annotated[int, typer.Option(help="Completions in one forward of a GPU.")] = 1,
    checkpointing: Annotated[bool, typer.Option(help="Gradient checkpointing.")] = True,
    old_logprob: Annotated[
        bool, typer.Option(help="The trainer makes an old-log-prob pass, as TRL does with vLLM.")
    ] = True,
    student_pass: Annotated[bool, typer.Option(help="GEAR makes a student pass of its own.")] = False,
    share_prompt: Annotated[
        bool, typer.Option(help="The teacher's prompt is scored once per group.")
    ] = False,
    teacher_copy: Annotated[bool, typer.Option(help="The teacher has weights of its own.")] = False,
    calibration: Annotated[
        Path,
        typer.Option(
            help="What `python -m benchmarks calibration --out` wrote; its error is shown with the plan."
        ),
    ] = Path("docs/results/plan_calibration.json"),
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What a step of GRPO and of GEAR should take and hold on GPUs: arithmetic on assumed rates."""
    from gear_rl.lab.plan import Step, architecture, planned

    try:
        if out is not None:
            check_output(out, [calibration], "--out")
        step = Step(
            prompts=prompts,
            group=group,
            prompt=prompt,
            teacher_prompt=teacher_prompt,
            tokens=tokens,
            gpus=gpus,
            concurrency=concurrency,
            micro_batch=micro_batch,
            checkpointing=checkpointing,
            old_logprob=old_logprob,
            student_pass=student_pass,
            share_prompt=share_prompt,
            teacher="copy" if teacher_copy else "live",
        )
        result = planned(model, architecture(model), gpu, step)
    except ValueError as error:
        raise InputError(str(error)) from None
    result |= {"error": _error_of(calibration), "command": command_line()}
    deliver(result, plan_cells, out, as_json)


def _error_of(calibration: Path) -> dict[str, Any] | None:
    """How far off the arithmetic was where it could be checked; None where nobody has checked."""
    if not calibration.exists():
        return None
    try:
        result = parse_json(calibration.read_text(encoding="utf-8"))
        return {"step": result["error_step"], "ratio": result["error_ratio"], "machine": result["machine"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"--calibration: {calibration} is no result of `python -m benchmarks calibration --out FILE`"
        ) from None
