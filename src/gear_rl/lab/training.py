"""One run of a comparison: it trains, and is judged before, in between and after."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import gc
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers.trainer_callback import TrainerCallback

from gear_rl.files import replace_file
from gear_rl.lab.cells import Cell, Score
from gear_rl.lab.oracle import Oracle, estimate_of
from gear_rl.lab.spec import Spec, common_fields, digest, failed_cell, write_cell
from gear_rl.method_builder import build_method
from gear_rl.model.forwards import max_positions
from gear_rl.rollouts import succeeds
from gear_rl.runs.arena import arena_config, sampled_rewards, task_of
from gear_rl.runs.machine import quiet_libraries, use_few_threads
from gear_rl.runs.run_config import RunConfig
from gear_rl.versions import versions

QUIET: dict[str, Any] = {
    "save_strategy": "no", "eval_strategy": "no", "report_to": "none", "logging_steps": 1, "push_to_hub": False,
    "load_best_model_at_end": False, "record_file": None,
}  # fmt: skip
"""Settings of a user's run that a comparison replaces."""
_CURVES = {"reward": "reward", "entropy": "entropy", "length": "completions/mean_length"}
"""The curves of a cell, and their keys in the trainer's log."""
_POINTS = 4
"""Evaluations at most, the one after the last step among them."""


def run_cell(spec: Spec, folder: Path, tell: Callable[[float], object] = lambda seconds: None) -> Cell:
    """The run's numbers, which its file holds too; a failure is written, not raised.

    ``tell`` gets the seconds that the run will take, after its first steps.
    """
    begin = time.perf_counter()
    try:
        cell = _train_cell(spec, folder, tell)
    except Exception as error:
        cell = failed_cell(spec, f"{type(error).__name__}: {error}")
    spent = {"seconds": round(time.perf_counter() - begin, 1), "versions": versions()}
    cell = cell.model_copy(update=spent)
    write_cell(spec, cell, folder)
    gc.collect()  # trainer and callbacks refer to each other
    return cell


def run_config(run: Mapping[str, Any], credit: dict[str, Any], engine: Mapping[str, Any]) -> RunConfig:
    """The user's run with a method of the comparison."""
    values: dict[str, Any] = {name: value for name, value in run.items() if name in RunConfig.model_fields}
    values |= {"credit": credit, "trainer": {**run["trainer"], **QUIET, **engine}}
    return RunConfig(**values)


def held_out_tiers(held_out: Any) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The held-out rows that judge a user's run, and by name those of further tiers, which are shown beside."""
    tiers = held_out if isinstance(held_out, Mapping) else {"": held_out or []}
    (_, judging), *others = [(name, [dict(row) for row in rows]) for name, rows in tiers.items()]
    return judging, dict(others)


def cell_trainer(spec: Spec, scratch: str) -> Any:
    """The trainer of a run, with the engine's settings of the spec."""
    from gear_rl.runs.trl_run import make_trainer

    steps = max(1, spec.steps - spec.sft_steps)
    if spec.run is not None:
        config, truth_of = run_config(spec.run, spec.credit, spec.engine), None
        own = {"output_dir": scratch, "seed": spec.seed, "learning_rate": spec.rate, "max_steps": steps}
        own["per_device_train_batch_size"] = spec.rollouts // config.trainer.get(
            "gradient_accumulation_steps", 1
        )
        config.trainer |= own
    else:
        config = arena_config(
            spec.task,
            spec.tier,
            spec.credit,
            seed=spec.seed,
            steps=steps,
            rollouts_per_step=spec.rollouts,
            learning_rate=spec.rate,
            output_dir=scratch,
            per_device_eval_batch_size=128,
            **spec.engine,
        )
        truth_of = task_of(spec.task, spec.tier).truth_of(spec.tier)
    trainer = make_trainer(config)
    if isinstance(trainer.credit, Oracle):
        trainer.credit = replace(trainer.credit, estimate=estimate_of(trainer, truth_of))
    return trainer


class _HeldOut:
    """The held-out rows of a run, and how they are answered; ``others`` are further tiers, shown beside."""

    def __init__(self, spec: Spec, trainer: Any) -> None:
        self.spec, self.trainer = spec, trainer
        if spec.run is None:
            task = task_of(spec.task, spec.tier)
            self.problems, self.others = task.rows(spec.tier, num=spec.n_eval, first_seed=spec.first), {}
            self.solve = partial(task.solve, trainer)
        else:
            judging, self.others = held_out_tiers(trainer.eval_dataset)
            self.problems, self.solve = judging[spec.first : spec.first + spec.n_eval], trainer.solve

    def solve_rows(self, rows: list[dict[str, Any]], samples: int = 1) -> list[list[float]]:
        """Their rewards in each of ``samples`` samplings."""
        return sampled_rewards(self.solve, rows, seed=self.spec.seed, samples=samples)

    def measure_rewards(self) -> dict[str, Any]:
        """The rewards, and what is shown beside; of that nothing while a rate is sought."""
        spec, beside = self.spec, dict[str, float]()
        if spec.between:
            beside = {
                name: fmean(self.solve_rows(rows[: spec.n_eval])[0]) for name, rows in self.others.items()
            }
            if spec.run is not None and spec.run.get("perplexity"):
                beside["perplexity"] = perplexity(self.trainer, Path(spec.run["perplexity"]))
        return {"rewards": self.solve_rows(self.problems, spec.samples), "beside": beside}


def _train_cell(spec: Spec, folder: Path, tell: Callable[[float], object]) -> Cell:
    """Rewards before, in between and after, and curves of the training."""
    start = time.perf_counter()
    quiet_libraries()
    if spec.run is None:
        use_few_threads()
    with tempfile.TemporaryDirectory(prefix="gear-cell-") as scratch:
        trainer = cell_trainer(spec, scratch)
        held_out = _HeldOut(spec, trainer)
        between = _Between(held_out)
        names = ("task", "tier", "run", "first", "n_eval", "samples", "between", "seed")
        stem = f"before-{digest({name: getattr(spec, name) for name in names})[:16]}"
        loaded = time.perf_counter()
        before = _measure_once(folder / f"{stem}.json", held_out.measure_rewards)
        ready = time.perf_counter()

        def tell_pace(pace: float) -> None:
            once = (ready - loaded) / spec.samples
            later = once * (spec.samples + (_POINTS - 1) * spec.between)
            tell(ready - start + pace * spec.steps + later)

        if spec.sft_steps:
            from gear_rl.lab.sft import fine_tune, prompts_of

            groups = spec.rollouts // int(trainer.args.num_generations)  # of a step
            later = (spec.steps - spec.sft_steps) * groups
            rows = prompts_of(trainer, later, spec.sft_steps * groups)
            fine_tune(trainer, rows, spec.sft_steps, between)
            between.first = spec.sft_steps
        if spec.sft_steps < spec.steps:
            trainer.add_callback(_Pace(tell_pace))
            trainer.add_callback(between)
            trainer.train()
        after = held_out.measure_rewards()
    return _cell_of_measures(spec, before, between.points, after, trainer.state.log_history)


def _cell_of_measures(
    spec: Spec, before: dict[str, Any], points: Sequence[Any], after: dict[str, Any], log: Sequence[Any]
) -> Cell:
    """The numbers of a run from its measures and the trainer's log."""
    steps = [entry for entry in log if "loss" in entry]
    seen = {reward for end in (before, after) for sample in end["rewards"] for reward in sample}
    first = f", {spec.sft_steps} of {spec.steps} steps fine-tune first" if spec.sft else ""
    right = 1.0 if spec.run is None else float(spec.run["right"])
    kinds = {succeeds(one, right) for one in seen}
    return Cell(
        **common_fields(spec),
        credit=repr(build_method(spec.credit)) + first,
        before=score_of(0, before["rewards"], right),
        held_out=tuple(score_of(step, samples, right) for step, samples in points),
        after=score_of(spec.steps, after["rewards"], right),
        beside={name: (before["beside"][name], value) for name, value in after["beside"].items()},
        curves={name: tuple(_finite(entry.get(key)) for entry in steps) for name, key in _CURVES.items()},
        graded=len(seen) > len(kinds),
        rewards=(min(seen), max(seen)),
        full_marks=right,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def score_of(step: int, samples: Sequence[Sequence[float]], right: float) -> Score:
    """The rewards of every sampling in numbers.

    >>> score_of(8, [[1.0, 0.5], [0.0, 0.5]], right=1.0)
    Score(step=8, rewards=(0.75, 0.25), successes=(0.5, 0.0))
    """
    return Score(
        step=step,
        rewards=tuple(sum(rewards) / len(rewards) for rewards in samples),
        successes=tuple(
            sum(succeeds(reward, right) for reward in rewards) / len(rewards) for rewards in samples
        ),
    )


def _measure_once(file: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The numbers in the file; measured and written if there are none.

    Runs of one seed begin with the same weights and draw the same answers before the first step, so two that
    measure at once write the same.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("rewards", "beside")}
    except (FileNotFoundError, ValueError, LookupError, TypeError):  # none, or a damaged one
        found = measure()
    replace_file(file, (json.dumps(found) + "\n").encode())
    return found


def perplexity(trainer: Any, file: Path) -> float:
    """Of the model on the paragraphs of a text, which blank lines divide: what a training forgets.

    Of a paragraph that is too long for the model, the beginning counts.
    """
    from gear_rl.engines.trl.evaluation import leave_no_trace

    losses, count, places = 0.0, 0, max_positions(trainer.model.config)
    with leave_no_trace(trainer):
        trainer.model.eval()
        for text in filter(str.strip, file.read_text(encoding="utf-8").split("\n\n")):
            ids = trainer._tokenizer(text, return_tensors="pt").input_ids[:, :places].to(trainer.model.device)
            if ids.shape[1] < 2:  # nothing is predicted
                continue
            losses += float(trainer.model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    return math.exp(losses / count)


class _Pace(TrainerCallback):
    """Tells the mean seconds of the first two steps."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell, self._begin = tell, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == min(2, state.max_steps):
            self._tell((time.perf_counter() - self._begin) / state.global_step)


class _Between(TrainerCallback):
    """Answers the held-out problems every few steps, but after the last; ``points`` are step and rewards."""

    first = 0
    """Steps that came before this trainer's."""

    def __init__(self, held_out: _HeldOut) -> None:
        self._held_out, self.points = held_out, list[tuple[int, Any]]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, spec = self.first + state.global_step, self._held_out.spec
        if step % -(-spec.steps // _POINTS) == 0 and step < spec.steps and spec.between:
            self.points.append((step, self._held_out.solve_rows(self._held_out.problems)))
