"""Trainings on the arena with rollouts by vLLM, and what was seen of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gear_rl.runs.trainer import make_trainer

import gear_rl.engines.trl.trainer as engine
from benchmarks.vllm_rollouts import SETTINGS
from gear_rl.arena.model import load
from gear_rl.environments import PRIVILEGED_CONTEXT, value_of
from gear_rl.runs.arena import arena_config
from gear_rl.signals.passes import ModelPasses


@dataclass
class Seen:
    """What the credit steps of a run were given and gave, and the forward passes that were run for them."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    """"student" and "teacher", ours; "old", TRL's for the log-probabilities of the rollouts."""
    trainer: Any = None

    def history(self, key: str) -> list[float]:
        return [entry[key] for entry in self.trainer.state.log_history if key in entry]


@dataclass
class Ended:
    """An environment after its rollout."""

    context: str | None

    def privileged_context(self) -> str | None:
        return self.context


def train(
    folder: Path,
    credit: str | dict[str, Any] = "gear",
    *,
    task: str = "chain",
    tier: str = "easy",
    lora: dict[str, Any] | None = None,
    resume: str | None = None,
    steps: int = 2,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Seen:
    """The command's own trainer after its training."""
    config = arena_config(
        task,
        tier,
        credit,
        seed=0,
        steps=steps,
        output_dir=str(folder),
        rollouts_per_step=32,
        **SETTINGS | settings,
    )
    config.lora = lora
    trainer, seen = make_trainer(config), Seen()
    seen.trainer, scoring = trainer, False
    step, hidden = engine.step, ModelPasses._hidden
    logps = trainer._get_per_token_logps_and_entropies

    def watched_step(batch: Any, *given: Any, **more: Any) -> Any:
        kept = {one.name: getattr(batch, one.name) for one in fields(batch)}
        if batch.environments:  # they are reset for the next batch
            kept["environments"] = [Ended(value_of(own, PRIVILEGED_CONTEXT)) for own in batch.environments]
        seen.batches.append(kept)
        nonlocal scoring
        scoring = True
        seen.results.append(step(batch, *given, **more))
        scoring = False
        return seen.results[-1]

    def watched_pass(self: Any, request: Any, prompts: Any, *more: Any) -> Any:
        # A distilling loss runs its teacher by itself, as a student with another prompt.
        seen.passes.append("student" if scoring and prompts is request.student else "teacher")
        return hidden(self, request, prompts, *more)

    def watched_logps(*given: Any, **more: Any) -> Any:
        if not torch.is_grad_enabled():  # the loss calls it too
            seen.passes.append("old")
        return logps(*given, **more)

    trainer._get_per_token_logps_and_entropies = watched_logps
    for callback in callbacks:
        trainer.add_callback(callback)
    with patch.object(engine, "step", watched_step), patch.object(ModelPasses, "_hidden", watched_pass):
        trainer.train(resume_from_checkpoint=resume)
    return seen


def save_model(folder: Path, task: str) -> str:
    """A folder with the task's model, as the command would load it."""
    model, tokenizer = load(task=task)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return str(folder)
