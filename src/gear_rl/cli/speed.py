"""``gear bench signals``, ``segments`` and ``memory``, and ``gear plan``: what speed and memory cost.

Heavy imports live inside them, so that ``gear --help`` answers at once.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gear_rl.cli.console import error_console, out_console, user_errors
from gear_rl.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="The numbers, as JSON.")]
Out = Annotated[Path | None, typer.Option(help="Write the JSON to this file too.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Peers = Annotated[str, typer.Option(help="all or none.")]


def add_speed(app: typer.Typer, bench_app: typer.Typer) -> None:
    """Hang these commands into ``gear`` and ``gear bench``."""
    bench_app.command("signals")(bench_signals)
    bench_app.command("memory")(bench_memory)
    bench_app.command("segments")(bench_segments)
    bench_app.command("page")(bench_page)
    app.command("plan")(plan)


@user_errors
def bench_signals(
    tokens: Annotated[int, typer.Option(help="Trained tokens.")] = 1024,
    hidden: Annotated[int, typer.Option(help="Width of the hidden states.")] = 1024,
    vocab: Annotated[int, typer.Option(help="Size of the vocabulary.")] = 151936,
    dtype: Annotated[str, typer.Option(help="Of the operands: float32 or bfloat16.")] = "float32",
    device: Device = "cpu",
    repeats: Annotated[
        int,
        typer.Option(
            help="Measurements of each, of ours and the limit three times as many; the least counts."
        ),
    ] = 3,
    peers: Peers = "all",
    scaling: Annotated[
        bool, typer.Option(help="Also over 16-fold ranges of tokens and vocabulary; minutes more.")
    ] = False,
    memory: Annotated[bool, typer.Option(help="Measure peak memory, in fresh processes.")] = True,
    as_json: AsJson = False,
    out: Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw cost over size here, as .png or .svg; needs --scaling.")
    ] = None,
) -> None:
    """Log-prob, entropy and KL of every token: cost over the two bare head products, beside the peers."""
    if plot is not None and not scaling:
        raise InputError(f"--plot {plot}: cost over size needs --scaling too")

    def run(say: Callable[[str], None]) -> dict[str, Any]:
        from gear_rl.bench.signals import bench_signals

        return bench_signals(
            tokens=tokens,
            hidden=hidden,
            vocab=vocab,
            dtype=dtype,
            device=device,
            repeats=repeats,
            peers=peers,
            scaling=scaling,
            memory=memory,
            say=say,
        )

    found = _measured(run)
    if plot is not None:
        from gear_rl.cli.speed_tables import draw_scaling

        draw_scaling(found, plot)
    _deliver(found, "signals", out, as_json)


@user_errors
def bench_memory(
    tokens: Annotated[str, typer.Option(help="Trained tokens, several with commas.")] = "1024",
    hidden: Annotated[int, typer.Option(help="Width of the hidden states.")] = 1024,
    vocab: Annotated[str, typer.Option(help="Sizes of the vocabulary, several with commas.")] = "151936",
    dtype: Annotated[str, typer.Option(help="Of the operands: float32 or bfloat16.")] = "float32",
    device: Device = "cpu",
    peers: Peers = "all",
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Peak memory of the signals and of the peers beyond their operands, each in a fresh process."""

    def run(say: Callable[[str], None]) -> dict[str, Any]:
        from gear_rl.bench.memory import bench_memory

        return bench_memory(
            tokens=_sizes("tokens", tokens),
            hidden=hidden,
            vocab=_sizes("vocab", vocab),
            dtype=dtype,
            device=device,
            peers=peers,
            say=say,
        )

    _deliver(_measured(run), "memory", out, as_json)


@user_errors
def bench_segments(
    rows: Annotated[int, typer.Option(help="Completions.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens of each.")] = 8192,
    repeats: Annotated[int, typer.Option(help="Measurements of each; the fastest counts.")] = 5,
    loop_rows: Annotated[int, typer.Option(help="Rows for the Python loop.")] = 8,
    device: Device = "cpu",
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How many tokens a second are cut into segments, against a Python loop and the memory's speed."""

    def run(say: Callable[[str], None]) -> dict[str, Any]:
        from gear_rl.bench.segments import bench_segments

        return bench_segments(
            rows=rows, tokens=tokens, repeats=repeats, loop_rows=loop_rows, device=device, say=say
        )

    _deliver(_measured(run), "segments", out, as_json)


@user_errors
def bench_page(
    page: Annotated[Path, typer.Argument(help="The page; the text between its marks is made anew.")] = Path(
        "docs/benchmarks.md"
    ),
    results: Annotated[Path, typer.Option(help="Folder of the JSON files.")] = Path("docs/results"),
) -> None:
    """Put the tables of the JSON files between the marks of the page of benchmarks."""
    from gear_rl.cli.speed_page import renewed

    try:
        text = renewed(page.read_text(encoding="utf-8"), results)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    page.write_text(text, encoding="utf-8")
    out_console.print(f"wrote {page}", highlight=False)


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
    calibrate: Annotated[
        bool, typer.Option(help="Train on this machine instead, and say how far off the model is; minutes.")
    ] = False,
    steps: Annotated[
        int, typer.Option(help="With --calibrate: steps of a run; the first does not count.")
    ] = 3,
    repeats: Annotated[int, typer.Option(help="With --calibrate: runs of each method.")] = 2,
    calibration: Annotated[
        Path, typer.Option(help="What --calibrate --out wrote; its error is told with the plan.")
    ] = Path("docs/results/plan_calibration.json"),
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What a step of GRPO and of GEAR should take and hold on GPUs: arithmetic on assumed rates."""
    if calibrate:

        def run(say: Callable[[str], None]) -> dict[str, Any]:
            from gear_rl.experiments.calibrate import calibrate
            from gear_rl.runs.trainer import quiet_libraries

            quiet_libraries(error_console)
            return calibrate(steps=steps, repeats=repeats, say=say)

        _deliver(_measured(run), "calibration", out, as_json)
        return
    from gear_rl.lab.plan import Step, architecture, planned

    try:
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
        found = planned(model, architecture(model), gpu, step)
    except ValueError as error:
        raise InputError(str(error)) from None
    _deliver(found | {"error": _error_of(calibration), "command": _command()}, "plan", out, as_json)


def _error_of(calibration: Path) -> dict[str, Any] | None:
    """How far off the model was where it could be checked; None where nobody has checked."""
    if not calibration.exists():
        return None
    try:
        found = json.loads(calibration.read_text(encoding="utf-8"))
        return {"step": found["error_step"], "ratio": found["error_ratio"], "machine": found["machine"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"--calibration: {calibration} is no result of `gear plan --calibrate --out FILE`"
        ) from None


def _measured(run: Callable[[Callable[[str], None]], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` measures on one thread, with the machine, the versions and the command that made it."""
    # Before torch is imported: threads that wait must not burn the CPU seconds that are counted.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from gear_rl.bench.measure import machine
    from gear_rl.runs.versions import versions

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with error_console.status("measuring") as status:
            found = run(lambda name: status.update(f"measuring: {name}"))
    except ValueError as error:
        raise InputError(str(error)) from None
    finally:
        torch.set_num_threads(before)
    return found | {"command": _command(), "machine": machine(), "versions": versions()}


def _deliver(found: dict[str, Any], kind: str, out: Path | None, as_json: bool) -> None:
    text = json.dumps(found, indent=1) + "\n"
    if out is not None:
        from gear_rl.files import replace_file

        replace_file(out, text.encode())
    if as_json:
        sys.stdout.write(text)
        return
    from gear_rl.cli.speed_tables import table_of

    out_console.print(table_of(kind, found))


def _sizes(field: str, text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--{field}: {text!r}; give whole numbers from 1 up, with commas between them")
    return sizes


def _command() -> str:
    """The command line, so that a result can be made again."""
    return " ".join(["gear", *sys.argv[1:]])
