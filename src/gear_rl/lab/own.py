"""A comparison on the user's own run: any model, dataset and reward that ``gear train`` takes.

Every method is trained with the run's own settings, but for its learning rate, its seed and the number of steps,
and judged on the run's held-out rows by the run's own reward.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from gear_rl.arena.split import reported
from gear_rl.credit.config import METHOD_SETTINGS
from gear_rl.errors import InputError
from gear_rl.lab.compare import CEILING, Plan, check_counts, line_up
from gear_rl.runs.config import RunConfig

LEAST_ROWS = 8
"""Held-out rows without which there are none to tune on beside those to report on."""
QUIET: dict[str, Any] = {
    "save_strategy": "no", "eval_strategy": "no", "report_to": "none", "logging_steps": 1, "push_to_hub": False,
    "load_best_model_at_end": False, "record_file": None,
}  # fmt: skip
"""What a run of a comparison leaves to the comparison."""
_OURS = ("output_dir", "seed", "learning_rate", "max_steps", "num_train_epochs", "resume_from_checkpoint")
_WHOLE_VOCABULARY = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "generation_kwargs": None,
}  # fmt: skip
"""What leaves a sample to temperature alone."""


def plan_of_run(
    config: RunConfig,
    methods: Sequence[str],
    *,
    seeds: int,
    steps: int | None = None,
    rates: int = 4,
    n_eval: int | None = None,
    samples: int | None = None,
) -> Plan:
    """The plan of a comparison on the user's own run, checked; reads its data, loads no model.

    ``config.credit`` is left out: the methods are those of the comparison. The last quarter of the held-out rows
    tells rates, and no report has them. A ceiling is there if ``oracle`` is among the methods. ``InputError``
    for what cannot be compared, and for what ``gear train`` refuses.
    """
    from gear_rl.engines.trl.config import GEARConfig
    from gear_rl.runs.trainer import check_run, load_data

    given = config.trainer
    steps = given.get("max_steps") if steps is None else steps
    if steps is None or steps < 1:
        raise InputError(
            "--steps: missing; a comparison needs a number of optimizer steps, or max_steps in the file"
        )
    if given.get("resume_from_checkpoint"):
        raise InputError("resume_from_checkpoint: a comparison begins every run anew; leave it out")
    train, held_out = load_data(config)
    rows = held_out_rows(held_out)
    if len(rows) < LEAST_ROWS:
        raise InputError(
            f"held_out: {len(rows)} rows; a comparison needs {LEAST_ROWS} at least, as held_out (a count or a "
            "share) or eval_dataset"
        )
    n_eval = min(256, len(reported(range(len(rows))))) if n_eval is None else n_eval
    check_counts(range(len(rows)), n_eval, seeds=seeds, rates=rates, steps=steps, samples=samples)
    usual = {name: given[name] for name in METHOD_SETTINGS if given.get(name) is not None}
    named, engine, ceiling = line_up(methods, usual)
    if ceiling is not None:
        _check_branching(config)
    default = GEARConfig.__dataclass_fields__
    per_device = given.get("per_device_train_batch_size", default["per_device_train_batch_size"].default)
    run = config.model_dump(exclude={"credit"})
    run["trainer"] = {
        name: value for name, value in given.items() if name not in (*_OURS, *QUIET, *METHOD_SETTINGS)
    }
    run["right"] = given.get("success_reward") or METHOD_SETTINGS["success_reward"]
    run["rows_sha256"] = _fingerprint(train, rows)
    for name, credit in named.items():
        check_run(run_config(run, credit, engine[name]), train, where=name)
    return Plan(
        methods=named,
        engine=engine,
        ceiling=ceiling,
        task=config.dataset,
        tier=config.model,
        held_out=range(len(rows)),
        seeds=seeds,
        steps=steps,
        rollouts=per_device * given.get("gradient_accumulation_steps", 1),
        rate=float(given.get("learning_rate", default["learning_rate"].default)),
        rates=rates,
        n_eval=n_eval,
        samples=1 if samples is None else samples,
        run=run,
    )


def _check_branching(config: RunConfig) -> None:
    """``InputError`` for a run whose rollouts cannot be gone on with as they were sampled."""
    if config.environment or config.tools:
        raise InputError(
            f"--methods: {CEILING!r} goes on from the middle of rollouts again and again, and nobody knows "
            "whether your tools bear it; leave it out of a run with tools"
        )
    for name, plain in _WHOLE_VOCABULARY.items():
        if config.trainer.get(name) not in (None, plain, {}):
            raise InputError(
                f"{name}: {config.trainer[name]}; {CEILING!r} among the methods samples from all words: "
                "leave out one of them"
            )


def _fingerprint(train: Any, held_out: Sequence[dict[str, Any]]) -> str:
    """The sha256 of the rows: a comparison whose data have changed is another one."""
    found = sha256()
    for part in (train, held_out):
        for row in part:
            found.update(json.dumps(row, sort_keys=True, default=str).encode())
    return found.hexdigest()


def run_config(run: Mapping[str, Any], credit: dict[str, Any], engine: Mapping[str, Any]) -> RunConfig:
    """The user's run with a method of the comparison."""
    values: dict[str, Any] = {name: value for name, value in run.items() if name in RunConfig.model_fields}
    values |= {"credit": credit, "trainer": {**run["trainer"], **QUIET, **engine}}
    return RunConfig(**values)


class OwnTask:
    """The held-out rows of a run as a task: right is what has ``right`` as reward at least, for all methods."""

    def __init__(self, trainer: Any, right: float) -> None:
        self._rows, self._right = held_out_rows(trainer.eval_dataset), right

    def rows(self, tier: str, *, num: int, first_seed: int) -> list[dict[str, Any]]:
        """So many rows from that one on."""
        return self._rows[first_seed : first_seed + num]

    def solve(self, trainer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[float]:
        """1 for a row whose rollout is right, else 0; sampled through the run's own loop, tools included."""
        rewards = trainer.solve(rows, seed=seed)
        return [float(reward is not None and reward >= self._right) for reward in rewards]


def held_out_rows(held_out: Any) -> list[dict[str, Any]]:
    """The held-out rows, tier after tier where there are several; none without any."""
    if held_out is None:
        return []
    if isinstance(held_out, Mapping):
        return [row for part in held_out.values() for row in held_out_rows(part)]
    return [dict(row) for row in held_out]
