"""A comparison on the user's own run: any model, dataset and reward that ``gear train`` takes.

Every method is trained with the run's own settings, but for its learning rate, its seed and the number of steps,
and judged on the run's held-out rows by the run's own reward.
"""

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from gear_rl.credit.credit_config import METHOD_SETTINGS
from gear_rl.errors import InputError, input_errors
from gear_rl.lab.cells import Outcome
from gear_rl.lab.comparison import Plan, check_counts, reported_part
from gear_rl.lab.lineup import CEILING, SFT, line_up
from gear_rl.lab.spec import digest_of_folder
from gear_rl.lab.training import QUIET, held_out_tiers, run_config
from gear_rl.runs.run_config import RunConfig
from gear_rl.user_objects import code_of

log = logging.getLogger(__name__)

LEAST_ROWS = 8
"""Held-out rows below which none are left to tune on."""
USUAL_ROWS = 256
"""Held-out problems, if there are so many."""
_OURS = ("output_dir", "seed", "learning_rate", "max_steps", "num_train_epochs", "resume_from_checkpoint")
_WHOLE_VOCABULARY = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "generation_kwargs": None,
}  # fmt: skip
"""Values with which samples depend on the temperature alone."""


def plan_of_run(
    config: RunConfig,
    methods: Sequence[str],
    *,
    seeds: int,
    steps: int | None = None,
    rates: int = 4,
    n_eval: int | None = None,
    n_usual: int = USUAL_ROWS,
    samples: int = 1,
    outcome: Outcome | None = None,
    perplexity: Path | None = None,
) -> Plan:
    """The checked plan of a comparison on the user's own run; reads its data, loads no model.

    The methods are those of the comparison, not ``config.credit``. A run without held-out rows gives up a quarter
    of its own. The last quarter of the held-out rows tunes the rates, if several are tried, and is never
    reported. Without ``n_eval`` the others are reported, ``n_usual`` at most. There is a ceiling if ``oracle`` is
    among the methods. ``InputError`` for a run that cannot be compared, and for settings that ``gear train``
    refuses.
    """
    from gear_rl.engines.trl.config import GEARConfig
    from gear_rl.lab.sft import imitated_texts
    from gear_rl.runs.trl_run import check_run

    given = config.trainer
    steps = given.get("max_steps") if steps is None else steps
    if steps is None or steps < 1:
        raise InputError(
            "--steps: missing; a comparison needs a number of optimizer steps, or max_steps in the file"
        )
    if given.get("resume_from_checkpoint"):
        raise InputError("resume_from_checkpoint: a comparison begins every run anew; leave it out")
    config, train, rows, beside = _with_held_out(config)
    n_eval = min(n_usual, len(reported_part(range(len(rows)), rates))) if n_eval is None else n_eval
    check_counts(range(len(rows)), n_eval, rates, seeds=seeds, steps=steps, samples=samples)
    usual = {name: given[name] for name in METHOD_SETTINGS if given.get(name) is not None}
    agent = bool(config.environment or config.tools)
    default, accumulation = GEARConfig.__dataclass_fields__, int(given.get("gradient_accumulation_steps", 1))
    group = int(given.get("num_generations", default["num_generations"].default))
    whole = math.lcm(group, accumulation)
    named, engine, own, ceiling = line_up(methods, usual, agent=agent, whole=whole)
    if ceiling is not None:
        _check_branching(config)
    per_device = given.get("per_device_train_batch_size", default["per_device_train_batch_size"].default)
    run = config.model_dump(exclude={"credit"})
    run["trainer"] = {
        name: value for name, value in given.items() if name not in (*_OURS, *QUIET, *METHOD_SETTINGS)
    }
    run["right"] = usual.get("success_reward", METHOD_SETTINGS["success_reward"])
    rollouts = per_device * accumulation
    for name, credit in named.items():
        batch = {"per_device_train_batch_size": own[name].get("rollouts", rollouts) // accumulation}
        config_of = run_config(run, credit, engine[name] | batch)
        check_run(config_of, train, where=name)
        if own[name].get(SFT):
            with input_errors(f"--methods: {name}: "):
                imitated_texts(train, config_of.trainer.get("privileged_column"))
    teachers = {settings.get("teacher_model", config.model) for settings in (given, *engine.values())}
    run["inputs_sha256"] = digest_of_inputs(
        code_of(run), chain(train, rows, beside), {config.model, *filter(None, teachers)}, perplexity
    )
    if perplexity is not None:
        run["perplexity"] = str(perplexity)
    return Plan(
        methods=named,
        engine=engine,
        own=own,
        outcome=outcome,
        ceiling=ceiling,
        task=config.dataset,
        tier=config.model,
        held_out=range(len(rows)),
        seeds=seeds,
        steps=steps,
        rollouts=rollouts,
        rate=float(given.get("learning_rate", default["learning_rate"].default)),
        rates=rates,
        n_eval=n_eval,
        samples=samples,
        run=run,
    )


def _with_held_out(config: RunConfig) -> tuple[RunConfig, Any, list[dict[str, Any]], list[dict[str, Any]]]:
    """The run with held-out rows, of its own where it names none; the rows that train, judge and stand beside."""
    from gear_rl.runs.trl_run import load_data

    train, held_out = load_data(config)
    if held_out is None:
        count = min(len(train) // 4, 4 * USUAL_ROWS // 3)
        log.warning("held_out: missing; %d of %d rows judge, and no method trains on them", count, len(train))
        config = config.model_copy(update={"held_out": count or None})
        train, held_out = load_data(config)
    rows, tiers = held_out_tiers(held_out)
    if len(rows) < LEAST_ROWS:
        raise InputError(
            f"held_out: {len(rows)} rows; a comparison needs {LEAST_ROWS} at least, as held_out (a count or a "
            "share) or eval_dataset"
        )
    return config, train, rows, [*chain(*tiers.values())]


def digest_of_inputs(
    code: bytes, rows: Iterable[Mapping[str, Any]], models: Iterable[str], perplexity: Path | None = None
) -> str:
    """A comparison whose code, rows or weights have changed is another one."""

    def text_of(value: Any) -> str:  # the text of an image is its address
        return sha256(value.tobytes()).hexdigest() if hasattr(value, "tobytes") else str(value)

    read = sha256(code)
    for row in rows:
        read.update(json.dumps(row, sort_keys=True, default=text_of).encode())
    for model in sorted(models):
        read.update(digest_of_folder(model))
    if perplexity is not None:
        if not perplexity.is_file():
            raise InputError(
                f"--perplexity: {perplexity} is no file; give a text whose perplexity is to be followed"
            )
        if not any(len(part.split()) > 1 for part in perplexity.read_text(encoding="utf-8").split("\n\n")):
            raise InputError(f"--perplexity: {perplexity} has no paragraph of two words; give a longer text")
        read.update(perplexity.read_bytes())
    return read.hexdigest()


def _check_branching(config: RunConfig) -> None:
    """``InputError`` for a run whose rollouts cannot be continued as they were sampled."""
    if config.environment or config.tools:
        raise InputError(
            f"--methods: {CEILING!r} continues rollouts from their middle, and so repeats tool calls; leave it "
            "out of a run with tools"
        )
    for name, plain in _WHOLE_VOCABULARY.items():
        if config.trainer.get(name) not in (None, plain, {}):
            raise InputError(
                f"{name}: {config.trainer[name]}; {CEILING!r} samples from the whole vocabulary; leave out one "
                "of them"
            )
