"""The plan of a comparison on the user's own run: any model, dataset and reward that ``gear train`` takes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from collections.abc import Sequence
from typing import Any

from gear_rl.arena.split import reported
from gear_rl.credit.config import METHOD_SETTINGS
from gear_rl.errors import InputError
from gear_rl.lab.compare import (
    BASELINE,
    CEILING,
    RATES,
    Plan,
    ceiling_of,
    check_counts,
    check_n_eval,
    parse_methods,
    take_engine,
)
from gear_rl.lab.own import QUIET, held_out_rows, own_config
from gear_rl.runs.config import RunConfig

LEAST_ROWS = 8
"""Held-out rows without which there are none to tune on beside those to report on."""
_EVALUATED = 256
"""Held-out rows that are reported on where the user does not say, if there are so many."""
_WHOLE_VOCABULARY = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "generation_kwargs": None,
}  # fmt: skip
"""What leaves a sample to temperature alone."""
_OURS = ("output_dir", "seed", "learning_rate", "max_steps", "num_train_epochs", "resume_from_checkpoint")


def plan_of_run(
    config: RunConfig,
    methods: Sequence[str],
    *,
    seeds: int,
    steps: int | None = None,
    rates: int = RATES,
    n_eval: int | None = None,
    samples: int | None = None,
) -> Plan:
    """The plan of a comparison on the user's own run, checked; reads its data, loads no model.

    ``config.credit`` is left out: the methods are those of the comparison. The held-out rows are those of ``gear
    train`` (``held_out`` or ``eval_dataset``); the last quarter of them tells rates, and no report has them. A
    ceiling is there if ``oracle`` is among the methods: it samples many more completions than any other. Raises
    ``InputError`` where there are no such rows, or no number of steps, for an oracle on a run with tools, and for
    what ``gear train`` refuses.
    """
    from gear_rl.engines.trl.config import GEARConfig
    from gear_rl.runs.trainer import check_run, load_data

    check_counts(seeds=seeds, rates=rates, steps=steps, samples=samples)
    given = config.trainer
    steps = given.get("max_steps") if steps is None else steps
    if steps is None or steps < 1:
        raise InputError(
            "--steps: missing; a comparison needs a number of optimizer steps, or max_steps in the file"
        )
    if given.get("resume_from_checkpoint"):
        raise InputError("resume_from_checkpoint: a comparison begins every run anew; leave it out")
    train, held_out = load_data(config)
    count = len(held_out_rows(held_out))
    if count < LEAST_ROWS:
        raise InputError(
            f"held_out: {count} rows; a comparison needs {LEAST_ROWS} at least, as held_out (a count or a share) "
            "or eval_dataset"
        )
    held_out_range = range(count)
    n_eval = min(_EVALUATED, len(reported(held_out_range))) if n_eval is None else n_eval
    check_n_eval(n_eval, held_out_range)
    asked = parse_methods(methods)
    ceiling = ceiling_of(asked)
    named = {BASELINE: {"name": BASELINE}} | ({} if ceiling is None else {ceiling: asked[ceiling]}) | asked
    if ceiling is not None:
        _check_branching(config)
    usual = {name: given[name] for name in METHOD_SETTINGS if given.get(name) is not None}
    engine = {name: take_engine(credit, usual) for name, credit in named.items()}
    default = GEARConfig.__dataclass_fields__
    per_device = given.get("per_device_train_batch_size", default["per_device_train_batch_size"].default)
    run = config.model_dump(exclude={"credit"})
    run["trainer"] = {
        name: value for name, value in given.items() if name not in (*_OURS, *QUIET, *METHOD_SETTINGS)
    }
    run["right"] = given.get("success_reward") or METHOD_SETTINGS["success_reward"]
    run["rows_sha256"] = _fingerprint(train, held_out)
    for name, credit in named.items():
        check_run(own_config(run, credit, engine[name]), train, where=name)
    return Plan(
        methods=named,
        engine=engine,
        ceiling=ceiling,
        task=config.dataset,
        tier=config.model,
        held_out=held_out_range,
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


def _fingerprint(train: Any, held_out: Any) -> str:
    """The sha256 of the rows: a comparison whose data have changed is another one. A stream is known by name."""
    import json
    from hashlib import sha256

    from datasets import IterableDataset

    found = sha256()
    for part in ([] if isinstance(train, IterableDataset) else train, held_out_rows(held_out)):
        for row in part:
            found.update(json.dumps(row, sort_keys=True, default=str).encode())
    return found.hexdigest()
