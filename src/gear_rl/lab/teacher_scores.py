"""Does the teacher of a run read its privileged context? Samples and scores completions; nothing is trained."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gear_rl.credit.contexts import contexts_of
from gear_rl.credit.credit_config import NO_CONTRAST, CreditConfig
from gear_rl.credit.own_loop import LocalEngine, token_advantages
from gear_rl.credit.plan import CreditResult
from gear_rl.credit.teacher_check import share_less_likely, stands_out, two_others
from gear_rl.errors import InputError
from gear_rl.lab.sampling import sample, sampled_engine
from gear_rl.lab.scoring import Reading
from gear_rl.lab.teacher_verdict import Scored, Verdict, verdict
from gear_rl.method_builder import build_method
from gear_rl.rollouts import RolloutBatch, succeeds
from gear_rl.runs.machine import machine_defaults
from gear_rl.runs.run_config import RunConfig, load_config
from gear_rl.runs.trl_run import is_arena, make_trainer
from gear_rl.signals.table import needs_context
from gear_rl.tensor.lists import float_list
from gear_rl.traits import engine_settings_of

BATCH = 16
"""Completions that are sampled and scored at a time, unless the user sets it."""
LENGTH = 256
"""Tokens of a completion, at most, unless the user sets it."""
AS_GIVEN = {
    "teacher_model_kind": "live",
    "teacher_contrast": NO_CONTRAST,
    "privileged_sources": ["row"],
    "privileged_column": "privileged_context",
}
"""Settings of a teacher that sees the context that a row was given, with weights that no step has changed."""
Progress = Callable[[str, float, int], None]
"""Gets the work under way, how many completions are done, and of how many."""


def no_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """The rewards of a run without one; the signature of a TRL reward function.

    >>> no_reward(["a"])
    [0.0]
    """
    return [0.0] * len(completions)


NO_REWARD = f"{__name__}:{no_reward.__name__}"
"""Its name in a configuration."""


def teacher_config(
    file: Path | None, model: str | None, data: str | None, reward: str | None, words: Sequence[str]
) -> RunConfig:
    """The run whose teacher is examined: a configuration of ``gear train``, or a model and a dataset.

    Without a reward every completion counts alike. ``InputError`` for a method that has no teacher.

    >>> config = teacher_config(None, "arena", "arena/chain/easy", None, ["--privileged_column", "answer"])
    >>> config.reward, config.trainer["privileged_column"]
    ('gear_rl.lab.teacher_scores:no_reward', 'answer')
    """
    if reward is None and file is None:
        reward = NO_REWARD
    own = [("model", model), ("dataset", data), ("reward", reward)]
    given = [word for name, value in own if value is not None for word in (f"--{name}", value)]
    config = load_config(file, [*given, *words])
    method = build_method(config.credit)
    if not needs_context(method):
        raise InputError(
            f"credit: {config.credit!r} has no teacher; leave it out, or give the method to train"
        )
    sources = config.trainer.get("privileged_sources") or engine_settings_of(method).get("privileged_sources")
    if sources == ["prompt"]:
        raise InputError(
            f"privileged_sources: {method.name!r} shows its teacher nothing but the prompt, so there is no "
            "context to measure; give another source, or another method"
        )
    return config


def examine(
    config: RunConfig,
    *,
    n: int = 32,
    samples: int = 4,
    seed: int = 0,
    progress: Progress = lambda name, done, total: None,
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict on the teacher over a run's first ``n`` rows, and the document's further keys.

    The policy answers every row ``samples`` times. Each completion is scored under its own context, under those
    of the next two rows that have others, and under none. ``InputError`` where fewer than three rows have one.
    """
    for name, number, least in (("n", n, 3), ("samples", samples, 2)):
        if number < least:
            raise InputError(f"--{name}: {number}; give {least} or more")
    with tempfile.TemporaryDirectory(prefix="gear-teacher-") as folder:
        trainer = make_trainer(sampling_config(config, samples, folder))
        rows = [dict(row) for row in trainer.train_dataset.take(n)]
        total = 2 * samples * len(rows)
        sampled = list(_sample_rows(trainer, rows, seed, progress, total))
        scored = list(_score_rows(sampled, trainer.args, samples, progress))
    if not scored:
        raise InputError(
            "max_completion_length: no completion was scored; where all are cut off and "
            "mask_truncated_completions leaves them out, give more tokens"
        )
    if config.reward == NO_REWARD:
        scored = [replace(one, reward=None) for one in scored]
    rewards = [one.reward for one in scored if one.reward is not None]
    success = float(trainer.args.success_reward)
    about: dict[str, Any] = {
        "model": config.model,
        "data": config.dataset,
        "prompts": len({one.prompt for one in scored}),
        "completions": len(scored),
        "right": sum(succeeds(reward, success) for reward in rewards) if rewards else None,
        "sources": sorted({name for one in sampled for name in one.sources if name is not None}),
    }
    return verdict(scored, success), about


class _Sampled(NamedTuple):
    """A batch of rollouts, the engine that scores it, and its privileged contexts with their sources."""

    batch: RolloutBatch
    engine: LocalEngine
    sources: Sequence[str | None]
    contexts: Sequence[str | None]


def sampling_config(config: RunConfig, samples: int, folder: str) -> RunConfig:
    """The same run for `sample`: ``samples`` completions of every prompt, nothing trained, saved or recorded."""
    run = config.model_copy(update={"eval_dataset": None, "held_out": None, "lora": None})
    size = int(config.trainer.get("per_device_train_batch_size", BATCH))
    machine = machine_defaults(pretrained=not is_arena(config.model), full=False)
    known = {"max_completion_length": LENGTH} | machine | config.trainer
    run.trainer = known | {
        "per_device_train_batch_size": max(samples, size - size % samples),
        "gradient_accumulation_steps": 1,
        "num_generations": samples,
        "max_steps": 1,
        "save_strategy": "no",
        "eval_strategy": "no",
        "record_file": None,
        "output_dir": folder,
    }
    for name in ("generation_batch_size", "steps_per_generation", "num_generations_eval"):
        run.trainer.pop(name, None)
    return run


def _sample_rows(
    trainer: Any, rows: Sequence[dict[str, Any]], seed: int, progress: Progress, total: int
) -> Iterator[_Sampled]:
    each = int(trainer.num_generations)
    size = trainer.args.per_device_train_batch_size // each
    for first in range(0, len(rows), size):
        progress("sampling", first * each, total)
        batch = sample(trainer, rows[first : first + size], seed=seed + first)
        engine = sampled_engine(trainer)
        # Before the next batch: an environment gives its context until its next reset.
        sources, contexts, _ = contexts_of(batch, engine, trainer.args, trainer.privileged)
        yield _Sampled(batch, engine, sources, contexts)


def _score_rows(
    sampled: Sequence[_Sampled], config: CreditConfig, samples: int, progress: Progress
) -> Iterator[Scored]:
    """The scores of every completion that has tokens, a context, and two other rows with other contexts."""
    everyone, first = two_others([text for one in sampled for text in one.contexts]), 0
    if all(pair is None for pair in everyone):
        raise InputError(
            "dataset: fewer than three rows have a privileged context of their own, so none can be compared with "
            "those of others; fill a column such as solution, or name it with --privileged_column"
        )
    given = CreditConfig(**{one.name: getattr(config, one.name) for one in fields(CreditConfig)} | AS_GIVEN)
    for one in sampled:
        progress("scoring", len(everyone) + first, 2 * len(everyone))
        batch, mask = one.batch, one.batch.completions.mask
        pairs = everyone[first : first + len(mask)]
        own = [text if pair else None for text, pair in zip(one.contexts, pairs, strict=True)]
        results = [_read_signals(one, own, given, "student_logprob", "teacher_logprob")]
        for k in (0, 1):
            results.append(_read_signals(one, [pair and pair[k] for pair in pairs], given, "teacher_logprob"))
        taught = [result.signals.get("teacher_logprob") for result in results]
        out, more = (float_list(compare(*taught)) for compare in (stands_out, share_less_likely))
        scored = [*taught, results[0].signals.get("student_logprob")]
        means = [float_list(values.sum(-1) / mask.sum(-1).clamp_min(1)) for values in scored]
        trusted_B = torch.stack([result.trusted_B for result in results]).all(0)
        for b in torch.nonzero(trusted_B)[:, 0].tolist():
            mine, second, third, none = (mean[b] for mean in means)
            yield Scored(
                prompt=(first + b) // samples,
                own=mine,
                other=(second + third) / 2,
                none=none,
                stands_out=out[b],
                likelier=more[b],
                reward=batch.rewards[b],
            )
        first += len(mask)


def _read_signals(
    sampled: _Sampled, contexts: Sequence[str | None], config: CreditConfig, *needs: str
) -> CreditResult:
    """These signals of a batch whose teacher sees these contexts."""
    batch = replace(sampled.batch, rows=[{"privileged_context": text} for text in contexts])
    return token_advantages(batch, Reading(needs=needs), sampled.engine, config)
