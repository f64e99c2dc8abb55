"""Held-out problems through TRL's own loop: pass@1, pass@k, greedy; the training around them does not notice."""

# scipy brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import comb, nan
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from scipy.stats import binomtest, bootstrap

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer

RESAMPLES = 2000
"""Bootstrap samples of an interval; the seed is fixed, so the same rewards give the same interval."""


def pass_at_k(num_tries: int, num_right: int, k: int) -> float:
    """The chance that at least one of ``k`` tries, drawn without replacement from ``num_tries``, is right.

    Unbiased for the pass@k of the policy (Chen et al. 2021, arXiv:2107.03374, equation 1).

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4), pass_at_k(4, 1, 2)
    (0.25, 1.0, 0.5)
    """
    return 1.0 - comb(num_tries - num_right, k) / comb(num_tries, k)


def interval(per_problem: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean over problems, each a number from 0 to 1; NaN without any.

    Problems, not tries, are drawn anew: tries at one problem depend on each other. Wilson's interval where every
    problem is 0 or 1, which also holds where all are alike; else the percentile bootstrap.

    >>> [round(end, 3) for end in interval([1.0, 0.0, 1.0, 1.0])]
    [0.301, 0.954]
    """
    if not per_problem:
        return nan, nan
    if all(value in (0.0, 1.0) for value in per_problem):
        test = binomtest(round(sum(per_problem)), len(per_problem))
        ends = test.proportion_ci(0.95, method="wilson")
    elif len(set(per_problem)) == 1:
        return per_problem[0], per_problem[0]
    else:
        batch = max(1, 4_000_000 // len(per_problem))  # else all samples are in memory at once
        options: Any = {"n_resamples": RESAMPLES, "batch": batch, "method": "percentile", "rng": 0}
        ends = bootstrap((np.asarray(per_problem),), np.mean, **options).confidence_interval
    return float(ends.low), float(ends.high)


def success_metrics(
    rewards: Sequence[Sequence[float | None]], success_reward: float, prefix: str
) -> dict[str, float]:
    """``PREFIX_pass@1`` and ``pass@k`` with ``_low`` and ``_high``, from the rewards of every problem's k tries.

    A try is right if its reward is at least ``success_reward``; one that no reward function judged is left out,
    and so is a problem with fewer than k judged tries.

    >>> success_metrics([[1.0, 0.0], [0.0, 0.0]], 1.0, "eval")["eval_pass@1"]
    0.25
    """
    judged = [[value >= success_reward for value in row if value is not None] for row in rewards]
    most = max(map(len, judged), default=0)
    metrics: dict[str, float] = {f"{prefix}_problems": float(sum(1 for row in judged if row))}
    for k in sorted({1, most}):
        solved = [pass_at_k(len(row), sum(row), k) for row in judged if len(row) >= k >= 1]
        if solved:
            low, high = interval(solved)
            metrics[f"{prefix}_pass@{k}"] = sum(solved) / len(solved)
            metrics[f"{prefix}_pass@{k}_low"], metrics[f"{prefix}_pass@{k}_high"] = low, high
    return metrics


def evaluate(trainer: "GEARTrainer", own_loop: Callable[..., Any], dataloader: Any, prefix: str) -> Any:
    """What TRL's ``own_loop`` returns, with our metrics among its own."""
    trainer.rollouts.evaluated = []
    try:
        with torch.random.fork_rng(devices=_devices(trainer)):
            torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
            # In the loop's own metrics, callbacks see ours (early stopping), and all is logged once.
            output = own_loop(metric_key_prefix=prefix)
    finally:
        rewards, trainer.rollouts.evaluated = trainer.rollouts.evaluated, None
    problems: Any = dataloader.dataset
    success, sized = cast(float, trainer.args.success_reward), hasattr(problems, "__len__")
    if sized:
        rewards = rewards[: len(problems)]  # several processes repeat the last problems to fill a batch
    metrics = success_metrics(rewards, success, prefix)
    if trainer.args.eval_greedy and sized:
        once = [[reward] for reward in trainer.solve(list(problems), greedy=True)]
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
    names = ("_logs", "_metrics", "_pending_metrics", "_pending_extra_logs")
    kept = {name: copy.deepcopy(getattr(trainer, name)) for name in names if hasattr(trainer, name)}
    was_training = trainer.model.training
    try:
        with torch.random.fork_rng(devices=_devices(trainer)), torch.no_grad():
            yield
    finally:
        trainer.model.train(was_training)
        vars(trainer).update(kept)


@contextmanager
def _solving(trainer: "GEARTrainer", greedy: bool, seed: int) -> Generator[None]:
    """One try for each problem, sampled with ``seed`` or greedy."""
    names = ("environments", "num_generations_eval", "generation_config", "generation_kwargs")
    kept = {name: getattr(trainer, name) for name in names if hasattr(trainer, name)}
    engine = getattr(trainer, "vllm_generation", None)
    temperature = getattr(engine, "temperature", None)
    with unnoticed(trainer):
        try:
            trainer.num_generations_eval = 1
            if greedy and engine is not None:
                engine.temperature = 0.0
            elif greedy:
                trainer.generation_config = copy.deepcopy(trainer.generation_config)
                trainer.generation_config.do_sample = False
                trainer.generation_kwargs = {**trainer.generation_kwargs, "do_sample": False}
            trainer.model.eval()
            torch.manual_seed(seed + 1000 * int(trainer.accelerator.process_index))
            yield
        finally:
            vars(trainer).update(kept)
            if engine is not None:
                engine.temperature = temperature


def _devices(trainer: "GEARTrainer") -> list[Any]:
    """The devices with a random state of their own."""
    device = trainer.accelerator.device
    return [device] if device.type == "cuda" else []
