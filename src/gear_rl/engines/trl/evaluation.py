"""Held-out problems through TRL's own loop: pass@1, pass@k, greedy; the training around them does not notice."""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from gear_rl.engines.evaluation import success_metrics
from gear_rl.engines.trl.trainer_type import Trainer


def evaluate(
    trainer: Trainer, own_loop: Callable[..., Any], arguments: tuple[Any, str, bool | None, Any, str]
) -> Any:
    """What TRL's ``own_loop`` returns for its ``arguments``, with our metrics among its own.

    With ``eval_greedy`` every problem is solved once more without sampling. The random state of the training is
    left as it was.
    """
    dataloader, prefix = arguments[0], arguments[4]
    trainer.rollouts.evaluated = []
    try:
        device = trainer.accelerator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
            # In the loop's own metrics, callbacks see ours (early stopping), and all is logged once.
            output = own_loop(*arguments)
    finally:
        rewards, trainer.rollouts.evaluated = trainer.rollouts.evaluated, None
    chosen: Any = dataloader.dataset
    sized = hasattr(chosen, "__len__")
    if sized:
        rewards = rewards[: len(chosen)]  # several processes repeat the last problems to fill a batch
    success = cast(float, trainer.args.success_reward)
    metrics = success_metrics(rewards, success, prefix)
    if trainer.args.eval_greedy and sized:
        once = [[reward] for reward in solve(trainer, list(chosen), greedy=True)]
        greedy = success_metrics(once, success, prefix)
        metrics |= {n.replace("pass@1", "greedy"): v for n, v in greedy.items() if "pass@1" in n}
    cast(dict[str, float], output.metrics).update(metrics)
    return output


def solve(
    trainer: Trainer,
    rows: Sequence[Mapping[str, Any]],
    *,
    greedy: bool = False,
    seed: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> list[float | None]:
    """The reward of one rollout per row, in order; the same on every process, which share the work.

    Sampled at the trainer's temperature with ``seed`` (None for the run's own), or greedy. The random state of
    the training is left as it was, and so are its metrics. ``advance`` is called with the number of rows that
    each batch has finished.
    """
    rewards: list[float | None] = []
    size, world, rank = (
        int(trainer.args.per_device_eval_batch_size),
        int(trainer.accelerator.num_processes),
        int(trainer.accelerator.process_index),
    )
    with _solving(trainer, greedy, int(trainer.args.seed) if seed is None else seed):
        for first in range(0, len(rows), size * world):
            block = [dict(row) for row in rows[first : first + size * world]]
            share = -(-len(block) // world)
            # Every process takes part in every gathering, so the last ones repeat a row that is dropped again.
            own = block[rank * share : (rank + 1) * share]
            own += [block[-1]] * (share - len(own))
            trainer._generate_and_score_completions(own)
            rewards += trainer.rollouts.rewards[: len(block)]
            if advance is not None:
                advance(len(block))
    return rewards


@contextmanager
def unnoticed(trainer: Trainer) -> Generator[None]:
    """Rollouts inside leave no trace: no gradient, and the random state, metrics, logs and mode are as before."""
    model = trainer.model
    was_training = model.training
    kept = {
        name: copy.deepcopy(getattr(trainer, name))
        for name in ("_logs", "_metrics", "_pending_metrics", "_pending_extra_logs")
        if hasattr(trainer, name)
    }
    devices = [trainer.accelerator.device] if trainer.accelerator.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        model.train(was_training)
        for name, value in kept.items():
            setattr(trainer, name, value)


@contextmanager
def _solving(trainer: Trainer, greedy: bool, seed: int) -> Generator[None]:
    kept = {
        name: copy.deepcopy(getattr(trainer, name))
        for name in ("generation_config", "generation_kwargs")
        if hasattr(trainer, name)
    }
    environments, tries = getattr(trainer, "environments", None), trainer.num_generations_eval
    engine = getattr(trainer, "vllm_generation", None)
    temperature = getattr(engine, "temperature", None)
    trainer.num_generations_eval = 1
    if greedy:
        if engine is not None:
            engine.temperature = 0.0
        else:
            trainer.generation_config.do_sample = False
            trainer.generation_kwargs["do_sample"] = False
    try:
        with unnoticed(trainer):
            trainer.model.eval()
            torch.manual_seed(seed + 1000 * int(trainer.accelerator.process_index))
            yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)
        trainer.environments, trainer.num_generations_eval = environments, tries
        if engine is not None:
            engine.temperature = temperature
