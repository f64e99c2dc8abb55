"""Held-out problems through TRL's own loop: pass@1, pass@k, greedy; the training around them does not notice."""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

from gear_rl.engines.evaluation import success_metrics

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer


def evaluate(trainer: "GEARTrainer", own_loop: Callable[..., Any], dataloader: Any, prefix: str) -> Any:
    """What TRL's ``own_loop`` returns, with our metrics among its own."""
    trainer.rollouts.evaluated = []
    try:
        device = trainer.accelerator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
            # In the loop's own metrics, callbacks see ours (early stopping), and all is logged once.
            output = own_loop(metric_key_prefix=prefix)
    finally:
        rewards, trainer.rollouts.evaluated = trainer.rollouts.evaluated, None
    chosen: Any = dataloader.dataset
    sized = hasattr(chosen, "__len__")
    if sized:
        rewards = rewards[: len(chosen)]  # several processes repeat the last problems to fill a batch
    success = cast(float, trainer.args.success_reward)
    metrics = success_metrics(rewards, success, prefix)
    if trainer.args.eval_greedy and sized:
        once = [[reward] for reward in trainer.solve(list(chosen), greedy=True)]
        greedy = success_metrics(once, success, prefix)
        metrics |= {n.replace("pass@1", "greedy"): v for n, v in greedy.items() if "pass@1" in n}
    cast(dict[str, float], output.metrics).update(metrics)
    return output


def solve(
    trainer: "GEARTrainer",
    rows: Sequence[Mapping[str, Any]],
    *,
    greedy: bool,
    seed: int | None,
    advance: Callable[[int], None] | None,
) -> list[float | None]:
    """``GEARTrainer.solve``; every process gets all rewards, and they share the work."""
    rewards: list[float | None] = []
    size, world = int(trainer.args.per_device_eval_batch_size), int(trainer.accelerator.num_processes)
    rank = int(trainer.accelerator.process_index)
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
def unnoticed(trainer: "GEARTrainer") -> Generator[None]:
    """Rollouts inside leave no trace: no gradient, and the random state, metrics, logs and mode are as before."""
    devices = [trainer.accelerator.device] if trainer.accelerator.device.type == "cuda" else []
    was_training = trainer.model.training
    with _as_before(trainer, "_logs", "_metrics", "_pending_metrics", "_pending_extra_logs"):
        try:
            with torch.random.fork_rng(devices=devices), torch.no_grad():
                yield
        finally:
            trainer.model.train(was_training)


@contextmanager
def _solving(trainer: "GEARTrainer", greedy: bool, seed: int) -> Generator[None]:
    environments, tries = getattr(trainer, "environments", None), trainer.num_generations_eval
    engine = getattr(trainer, "vllm_generation", None)
    temperature = getattr(engine, "temperature", None)
    with _as_before(trainer, "generation_config", "generation_kwargs"), unnoticed(trainer):
        try:
            trainer.num_generations_eval = 1
            if greedy and engine is not None:
                engine.temperature = 0.0
            elif greedy:
                trainer.generation_config.do_sample = False
                trainer.generation_kwargs["do_sample"] = False
            trainer.model.eval()
            torch.manual_seed(seed + 1000 * int(trainer.accelerator.process_index))
            yield
        finally:
            trainer.environments, trainer.num_generations_eval = environments, tries
            if engine is not None:
                engine.temperature = temperature


@contextmanager
def _as_before(trainer: "GEARTrainer", *names: str) -> Generator[None]:
    """These attributes of the trainer, of those it has, are afterwards what they were."""
    kept = {name: copy.deepcopy(getattr(trainer, name)) for name in names if hasattr(trainer, name)}
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)
