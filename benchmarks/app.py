"""The commands. Heavy imports live inside them, so that ``python -m benchmarks --help`` answers at once."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.results import PROGRAM, Out, deliver, machine, measured
from gear_rl.arena.task import DEFAULT_TASK, DEFAULT_TIER, TASKS
from gear_rl.cli.console import AsJson, command_line, error_console, out_console, show_log, user_errors
from gear_rl.errors import InputError, did_you_mean

Task = Annotated[str, typer.Option(help=f"What to train on: {' or '.join(TASKS)}.")]
Tier = Annotated[str, typer.Option(help="How hard it is: easy, default or hard.")]
Rollouts = Annotated[int, typer.Option(help="Rollouts per step, in groups of 8.")]

app = typer.Typer(
    help="What things cost, each measured beside its limit and its peers in one process.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
@user_errors
def signals(
    tokens: Annotated[int, typer.Option(min=1, help="Trained tokens.")] = 1024,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states.")] = 1024,
    vocab: Annotated[int, typer.Option(min=1, help="Size of the vocabulary.")] = 151936,
    dtype: Annotated[str, typer.Option(help="Type of the operands: float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each competitor; the least counts.")] = 3,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Log-prob, entropy and KL of every token: cost over the two bare head products, beside the peers."""
    from benchmarks.signals import bench_signals, signals_cells

    sizes = {"tokens": tokens, "hidden": hidden, "vocab": vocab}
    result = measured(
        lambda say: bench_signals(**sizes, dtype=dtype, device=device, repeats=repeats, say=say)
    )
    deliver(result, signals_cells, out, as_json)


@app.command()
@user_errors
def methods(
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method (may be repeated); else all.")
    ] = None,
    task: Task = DEFAULT_TASK,
    tier: Tier = DEFAULT_TIER,
    steps: Annotated[int, typer.Option(help="Steps per run; the first does not count.")] = 4,
    repeats: Annotated[int, typer.Option(help="Runs of every method.")] = 3,
    rollouts: Rollouts = 64,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """CPU seconds of every method's training step over those of GRPO, on the arena."""
    from gear_rl.methods import METHODS

    for name in method or ():
        if name not in METHODS:
            raise InputError(f"--method: no method {name!r}; {did_you_mean(name, METHODS)}")
    _check_groups(rollouts)
    from benchmarks.methods import bench_methods, methods_cells

    show_log()
    sizes = {"steps": steps, "repeats": repeats, "rollouts": rollouts}
    result = bench_methods(method or list(METHODS), task=task, tier=tier, **sizes, console=error_console)
    deliver(result, methods_cells, out, as_json)


@app.command()
@user_errors
def step(
    method: Annotated[
        str, typer.Option(help="The method; its settings after a colon, as in gear:alpha=2.")
    ] = "gear",
    task: Task = DEFAULT_TASK,
    tier: Tier = DEFAULT_TIER,
    steps: Annotated[int, typer.Option(help="Steps of both per repeat; the first does not count.")] = 6,
    repeats: Annotated[int, typer.Option(help="How often both are trained.")] = 5,
    rollouts: Rollouts = 64,
    config: Annotated[
        Path | None,
        typer.Option(
            help="In place of the arena: the file of a gear train run, with its own rollouts per step."
        ),
    ] = None,
    vllm: Annotated[
        bool, typer.Option(help="Sample with vLLM in this process (in the environment of make test-vllm).")
    ] = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """CPU seconds of a method's whole training step over GRPO's, and the share of each part."""
    from gear_rl.lab.lineup import parse_method

    _, credit = parse_method(method)
    _check_groups(rollouts)
    from benchmarks.step import bench_step, step_cells
    from gear_rl.runs.arena import task_of
    from gear_rl.runs.run_config import load_config

    show_log()
    result = bench_step(
        credit,
        run=None if config is None else load_config(config, []),
        task=task_of(task).name,
        tier=tier,
        steps=steps,
        repeats=repeats,
        rollouts=rollouts,
        console=error_console,
        vllm=vllm,
    )
    result |= {"command": command_line(PROGRAM), "machine": machine()}
    deliver(result, step_cells, out, as_json)


@app.command()
@user_errors
def vllm_curves(
    seeds: Annotated[int, typer.Option(help="Runs of each method and generation.")] = 3,
    steps: Annotated[int, typer.Option(min=10, help="Steps of each run.")] = 30,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = Path("results/vllm_curves.json"),
) -> None:
    """Learning curves of gear and GRPO on chain, with vLLM and without (in the environment of make test-vllm)."""
    from benchmarks.vllm_rollouts import learning_curves

    found = learning_curves(("gear", "uniform"), seeds, steps, error_console.print)
    found |= {"command": command_line(PROGRAM), "machine": machine()}
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    out_console.print(found["ends"])


@app.command()
@user_errors
def contexts(
    out: Annotated[Path, typer.Option(help="Folder for the rows and the run.")] = Path("runs/contexts"),
) -> None:
    """Rows with contexts of the teacher that tell more or less, and the run for gear compare --config."""
    from benchmarks.contexts import write_run

    out_console.print(f"wrote {write_run(out)}")


@app.command()
@user_errors
def prm(
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("runs/prm"),
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of 32 sequences.")] = 400,
) -> None:
    """Train a process reward model of the codebook, for step_scores:prm=FOLDER; minutes."""
    from benchmarks.prm import train_prm

    found = train_prm(out, steps=steps)
    out_console.print(f"wrote {out}; of the last batch's wrong codes it finds {found:.0%}")


@app.command()
@user_errors
def curves(
    methods: Annotated[
        str,
        typer.Option(help="Methods, with commas between them; GRPO and the oracle are always among them."),
    ] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each method at each place, seeds from 0.")] = 3,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; by default one per core.")] = None,
    runs: Annotated[
        Path, typer.Option(help="Folder of the runs; what is finished there is not run again.")
    ] = Path("runs/curves"),
    plots: Annotated[
        Path | None, typer.Option(help="Folder for curves_decisions.svg and curves_rollouts.svg.")
    ] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Where credit matters: gains over GRPO by decisions per completion and by rollouts per step; hours.

    Writes file and figures anew after each comparison. Finished runs of the folder are not repeated.
    """
    from benchmarks import curves as experiment
    from gear_rl.files import replace_file
    from gear_rl.lab.lineup import split_methods

    result: dict[str, Any] = {}
    names = split_methods(methods or experiment.METHODS)
    command = command_line(PROGRAM)
    for result in experiment.curves(names, seeds, runs, jobs=jobs, console=error_console, command=command):
        if out is not None:
            replace_file(out, (json.dumps(result, indent=1) + "\n").encode())
        for axis in experiment.AXES:
            if plots is not None and experiment.curve(result, axis):
                drawn = experiment.gains_svg(result, axis)
                replace_file(plots / f"curves_{axis}.svg", drawn.encode())
    deliver(result, experiment.curves_cells, out, as_json)


@app.command()
@user_errors
def words(
    model: Annotated[str, typer.Option(help="Folder of a model or an adapter, a hub name, or smollm2.")],
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them; floors and controls come by themselves.")
    ] = "gear,rlsd,entropy_forks",
    data: Annotated[
        str,
        typer.Option(help="Rows with a worked solution: package.module:function or reasoning-gym/chain_sum."),
    ] = "benchmarks.word_problems:bare",
    split: Annotated[str, typer.Option(help="test, to report; train, to choose settings.")] = "test",
    n: Annotated[int, typer.Option(help="Wrong completions, of as many problems.")] = 200,
    length: Annotated[int, typer.Option(help="Tokens of a completion, at most.")] = 48,
    runs: Annotated[
        Path, typer.Option(help="Folder of the sampled completions; what is there is not sampled again.")
    ] = Path("runs/words"),
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Where a pretrained model's credit lies when it errs by itself: two AUCs, with two contexts."""
    if split not in ("train", "test"):
        raise InputError(f"--split: {split!r}; give test, to report, or train, to choose")

    from benchmarks import words as experiment
    from gear_rl.lab.lineup import parse_methods, split_methods
    from gear_rl.runs.model_wheels import resolve_model

    named = parse_methods(split_methods(methods))
    name = resolve_model(model)
    result = measured(
        lambda say: experiment.words(
            experiment.Words(model=name, data=data, split=split, n=n, length=length, runs=runs, say=say),
            named,
        )
    )
    deliver(result, experiment.words_cells, out, as_json)


@app.command()
@user_errors
def coverage(
    runs: Annotated[Path, typer.Option(help="GRPO's runs: a file of `benchmarks rates`.")] = Path(
        "results/rates_codebook.json"
    ),
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How often intervals hold where rates are chosen and runs are lost; a simulation."""
    from benchmarks import coverage as experiment

    result = measured(lambda say: experiment.coverage(say, runs))
    deliver(result, experiment.coverage_cells, out, as_json)


@app.command()
@user_errors
def rates(
    task: Task = "codebook",
    tier: Tier = DEFAULT_TIER,
    methods: Annotated[str, typer.Option(help="With commas between them; GRPO is among them.")] = "gear,rlsd",
    tried: Annotated[str, typer.Option("--rates", help="Learning rates.")] = "2e-4,4e-4,8e-4,1.6e-3",
    seeds: Annotated[int, typer.Option(help="Runs of each method at each rate.")] = 12,
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    runs: Annotated[Path, typer.Option(help="Folder of the runs, resumed.")] = Path("runs/rates"),
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Which rule for a learning rate serves best; an hour."""
    from dataclasses import replace

    from benchmarks import rates as experiment
    from gear_rl.lab.comparison import plan_of
    from gear_rl.lab.lineup import split_methods

    try:
        each = [float(rate) for rate in tried.split(",")]
    except ValueError:
        raise InputError(f"--rates: {tried}; give numbers with commas between them") from None
    plan = plan_of(split_methods(methods), task=task, tier=tier, seeds=1)
    named = {name: credit for name, credit in plan.methods.items() if name != plan.ceiling}
    plan = replace(plan, methods=named)
    folder = runs / f"{task}-{tier}"
    result = measured(lambda say: experiment.rates(plan, each, seeds, folder, jobs))
    deliver(result, experiment.rates_cells, out, as_json)


@app.command()
@user_errors
def page() -> None:
    """Make the tables of README and the pages from results/ and what was measured."""
    from benchmarks.page import renew_pages

    out_console.print(f"wrote {', '.join(path.name for path in renew_pages())}", highlight=False)


def _check_groups(rollouts: int) -> None:
    if rollouts < 8 or rollouts % 8:
        raise InputError(f"--rollouts: {rollouts} do not divide into groups of 8")
