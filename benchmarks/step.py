"""A method's whole training step over GRPO's, the trainers taking turns step by step."""

import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.progress import Progress
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from benchmarks.measure import now
from benchmarks.results import Cells
from benchmarks.vllm_rollouts import one_engine, with_vllm
from gear_rl.errors import InputError
from gear_rl.lab.run_plan import QUIET
from gear_rl.method_builder import build_method
from gear_rl.runs.arena import arena_config, rewards_for
from gear_rl.runs.machine import use_few_threads
from gear_rl.runs.run_config import RunConfig
from gear_rl.runs.trl_run import make_trainer
from gear_rl.signals.passes import ModelPasses
from gear_rl.traits import engine_settings_of
from gear_rl.versions import versions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASE = "uniform"
"""Plain GRPO, which every method is measured against."""
PARTS = ("generation", "student", "teacher", "head", "credit", "loss", "backward")
"""Where a step's time goes: sampling; the credit's own student pass, its teacher pass, its head products and its
rest; TRL's loss and the backward pass. Rewards, optimizer and trainer belong to none of them."""


def bench_step(
    credit: str | dict[str, Any],
    *,
    task: str,
    tier: str,
    steps: int,
    repeats: int,
    rollouts: int,
    console: Console,
    run: RunConfig | None = None,
    vllm: bool = False,
) -> dict[str, Any]:
    """Seconds of the method's training step over plain GRPO's, and the share of each part.

    Two trainers live in one process, with the same seed and data, and take turns after every step, so that
    whatever else the machine does falls on both. The GRPO is TRL's, without a credit pass. A repeat's ratio is
    that of the sums over its steps; the first step warms up and does not count. Shares are of GRPO's step.
    ``run`` replaces the arena's task. With ``vllm`` both sample with one vLLM in this process, which loads the
    weights of the trainer whose turn it is, as in every step of a run.
    """
    if repeats < 1 or steps < 2:
        raise InputError(f"--steps {steps} --repeats {repeats}: give 2 steps or more, and 1 repeat or more")
    name = credit if isinstance(credit, str) else str(credit["name"])
    settings = engine_settings_of(build_method(credit))
    threads = use_few_threads()
    if run is None:
        # Both get the rewards that the method needs.
        reward = rewards_for(credit, task)
        configured = partial(arena_config, task, tier, rollouts_per_step=rollouts, reward=reward)
    else:
        configured = partial(_own_run, run)
        accumulated = run.trainer.get("gradient_accumulation_steps", 1)
        rollouts = run.trainer.get("per_device_train_batch_size", 8) * accumulated
    rows: list[tuple[_Clock, _Clock]] = []
    if vllm:
        configured = partial(with_vllm, configured)
    with (
        one_engine() if vllm else nullcontext(),
        Progress(console=console, disable=not console.is_terminal, transient=True) as bar,
    ):
        work = bar.add_task(f"measuring {name}", total=repeats)
        for repeat in range(repeats):
            rows.append(_both(partial(configured, steps=steps, seed=repeat), (BASE, {}), (credit, settings)))
            bar.advance(work)
    ratios = [sum(own.steps) / sum(base.steps) for base, own in rows]
    total = sum(sum(base.steps) for base, _ in rows)
    shares = {
        part: [round(sum(clock.parts[part] for clock in side) / total, 3) for side in zip(*rows, strict=True)]
        for part in PARTS
    }
    seconds = "CPU seconds" if DEVICE == "cpu" else "Seconds"
    return {
        "what": f"{seconds} of a training step of {name} over those of GRPO, median of the repeats",
        "method": name,
        "task": task if run is None else run.dataset,
        "tier": tier if run is None else run.model,
        "steps": steps,
        "repeats": repeats,
        "rollouts_per_step": rollouts,
        "threads": threads,
        "generation": "vLLM, colocate" if vllm else "transformers",
        "credit": credit,
        "engine": settings,
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "grpo_seconds_per_step": round(total / (repeats * (steps - 1)), 4),
        "shares_of_grpo_step": {
            part: {"grpo": base, name: own, "more": round(own - base, 3)}
            for part, (base, own) in shares.items()
        },
        "versions": versions(),
    }


def letters_reward(completions: list[Any], **columns: Any) -> list[float]:
    """The number of different letters: no two completions are equal, so that all are scored, the dearest case.

    >>> letters_reward(["abba", "abc"])
    [2.0, 3.0]
    """
    texts = [own if isinstance(own, str) else own[-1]["content"] for own in completions]
    return [float(len({*text.lower()} - {" "})) for text in texts]


def step_cells(result: Mapping[str, Any]) -> Cells:
    """The shares of both steps as a table."""
    name = result["method"]
    rows = [
        (part, f"{row['grpo']:.1%}", f"{row[name]:.1%}", f"{row['more']:+.1%}")
        for part, row in result["shares_of_grpo_step"].items()
    ]
    sampling = f", {result['generation']}" if "generation" in result else ""
    title = (
        f"{result['task']}/{result['tier']}, {result['rollouts_per_step']} rollouts a step{sampling}: {name} "
        "costs "
        f"{result['ratio']:.2f} of GRPO's step ({result['least']:.2f} to {result['most']:.2f})"
    )
    return Cells(title, ("part of the step, of GRPO's whole", "GRPO", name, "more"), rows, [])


@dataclass(slots=True)
class _Clock:
    """Seconds of each counted step of a trainer, and of its parts without the parts inside them."""

    steps: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    counts: bool = False
    inside: list[float] = field(default_factory=list)
    """For each open part, the seconds of the parts inside it."""

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **options: Any) -> Any:
            begin = now(DEVICE)
            self.inside.append(0.0)
            try:
                return call(*args, **options)
            finally:
                spent = now(DEVICE) - begin
                own = spent - self.inside.pop()
                if self.inside:
                    self.inside[-1] += spent
                if self.counts:
                    self.parts[part] += own

        return measured


class _Turns(TrainerCallback):
    """Lets the other trainer run between two steps, and reads the clock during this one's turn."""

    def __init__(self, mine: threading.Semaphore, other: threading.Semaphore, clock: _Clock) -> None:
        self._mine, self._other, self._clock = mine, other, clock
        self._begin: float | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop()
        self._other.release()
        self._mine.acquire()
        self._clock.counts = self._begin is not None or state.global_step > 0
        self._begin = now(DEVICE)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop()
        self._clock.counts = False

    def _stop(self) -> None:
        if self._begin is not None and self._clock.counts:
            self._clock.steps.append(now(DEVICE) - self._begin)


def _own_run(
    run: RunConfig, credit: Any, *, steps: int, seed: int, output_dir: str, **more: Any
) -> RunConfig:
    """The user's run without files, evaluation and trackers."""
    counted = {"seed": seed, "max_steps": steps, "output_dir": output_dir}
    return run.model_copy(update={"credit": credit, "trainer": run.trainer | QUIET | counted | more})


def _both(
    configured: Callable[..., RunConfig], *sides: tuple[str | dict[str, Any], dict[str, Any]]
) -> tuple[_Clock, _Clock]:
    """The clocks of GRPO and of the method after a run of both."""
    clocks, errors = (_Clock(), _Clock()), list[BaseException]()
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as folder, _passes_timed(clocks[1]):
        configs = [
            configured(method, output_dir=f"{folder}/{me}", **more) for me, (method, more) in enumerate(sides)
        ]
        first = configs[0].trainer["seed"] % 2
        turns = [threading.Semaphore(int(me == first)) for me in (0, 1)]
        trainers = [_alone(config) for config in configs]
        # Not a method without effect, but no credit step at all.
        trainers[0]._run_credit_step = itemgetter("advantages")
        for me, trainer in enumerate(trainers):
            for printer in (PrinterCallback, ProgressCallback):
                trainer.remove_callback(printer)
            trainer.add_callback(_Turns(turns[me], turns[1 - me], clocks[me]))
            _time_parts(trainer, clocks[me])

        def run(me: int) -> None:
            torch.set_num_threads(threads)  # the setting belongs to a thread
            try:
                turns[me].acquire()
                trainers[me].train()
            except BaseException as error:
                errors.append(error)
            finally:
                turns[1 - me].release(1 + configs[me].trainer["max_steps"])  # the other goes on alone

        both = [threading.Thread(target=run, args=(me,)) for me in (0, 1)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    if errors:
        raise errors[0]
    return clocks


def _alone(config: RunConfig) -> Any:
    """The trainer, without what TRL puts into the environment for vLLM: the next one would take it for DDP's."""
    with patch.dict(os.environ):
        return make_trainer(config)


def _time_parts(trainer: Any, clock: _Clock) -> None:
    """Time the trainer's own calls."""
    trainer._generate = clock.timed("generation", trainer._generate)
    trainer._compute_loss = clock.timed("loss", trainer._compute_loss)
    trainer._run_credit_step = clock.timed("credit", trainer._run_credit_step)
    trainer.accelerator.backward = clock.timed("backward", trainer.accelerator.backward)


def _passes_timed(clock: _Clock) -> Any:
    """While it is open, times the passes of the credit in all trainers: GRPO has none."""
    student, teacher = (clock.timed(part, ModelPasses._hidden) for part in ("student", "teacher"))

    def hidden(self: Any, request: Any, prompts: Any, batch: Any, keep: Any) -> Any:
        own = student if prompts is request.student else teacher
        return own(self, request, prompts, batch, keep)

    head = clock.timed("head", ModelPasses._statistics)
    return patch.multiple(ModelPasses, _hidden=hidden, _statistics=head)
