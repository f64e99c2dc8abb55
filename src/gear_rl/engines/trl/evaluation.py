"""Held-out problems through TRL's own loop: pass@1, pass@k, greedy; the training around them stays as it is."""

# scipy brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import copy
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import comb, nan
from typing import Any, cast

import numpy as np
import torch
from scipy.stats import binomtest, bootstrap
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from gear_rl.engines.trl.rollouts import Rollouts
from gear_rl.rollouts import succeeds

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
    judged = [[succeeds(value, success_reward) for value in row if value is not None] for row in rewards]
    most = max(map(len, judged), default=0)
    metrics: dict[str, float] = {f"{prefix}_problems": float(sum(1 for row in judged if row))}
    for k in sorted({1, most}):
        solved = [pass_at_k(len(row), sum(row), k) for row in judged if len(row) >= k >= 1]
        if solved:
            low, high = interval(solved)
            metrics[f"{prefix}_pass@{k}"] = sum(solved) / len(solved)
            metrics[f"{prefix}_pass@{k}_low"], metrics[f"{prefix}_pass@{k}_high"] = low, high
    return metrics


class Evaluating(GRPOTrainer):
    """``GRPOTrainer`` that measures how many problems it solves."""

    rollouts: Rollouts
    model: Any
    args: Any

    def evaluation_loop(
        self, dataloader: Any, *more: Any, metric_key_prefix: str = "eval", **named: Any
    ) -> Any:
        """TRL's evaluation, and pass@1 and pass@k (k = ``num_generations_eval``) with 95 % intervals.

        ``eval_dataset={"easy": ..., "hard": ...}`` is evaluated tier by tier. With ``eval_greedy`` every problem
        is solved once more without sampling. The random state of the training is left as it was.
        """
        self.rollouts.evaluated = []
        try:
            with random_state_kept(self):
                torch.manual_seed(self.args.seed + self.accelerator.process_index)
                # In the loop's own metrics, callbacks see ours (early stopping), and all is logged once.
                output = super().evaluation_loop(
                    dataloader, *more, metric_key_prefix=metric_key_prefix, **named
                )
        finally:
            rewards, self.rollouts.evaluated = self.rollouts.evaluated, None
        problems: Any = dataloader.dataset
        success, sized = self.args.success_reward, hasattr(problems, "__len__")
        success = 1.0 if success is None else success
        if sized:
            rewards = rewards[: len(problems)]  # several processes repeat the last problems to fill a batch
        metrics = success_metrics(rewards, success, metric_key_prefix)
        if self.args.eval_greedy and sized:
            once = [[reward] for reward in self.solve(problems, greedy=True)]
            greedy = success_metrics(once, success, metric_key_prefix)
            metrics |= {n.replace("pass@1", "greedy"): v for n, v in greedy.items() if "pass@1" in n}
        cast(dict[str, float], output.metrics).update(metrics)
        return output

    def solve(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        greedy: bool = False,
        seed: int | None = None,
    ) -> list[float | None]:
        """The reward of one rollout per row, tools and environments included; nothing is trained or logged.

        Every process gets all rewards, and they share the work. Sampled with ``seed``, or the run's own: the same
        seed draws the same rollouts again.
        """
        rows, rewards = [*rows], list[float | None]()  # a part of a Dataset would be a dict
        size, world = int(self.args.per_device_eval_batch_size), int(self.accelerator.num_processes)
        rank = int(self.accelerator.process_index)
        with self._solving(greedy, int(self.args.seed) if seed is None else seed):
            for first in range(0, len(rows), size * world):
                block = [dict(row) for row in rows[first : first + size * world]]
                share = -(-len(block) // world)
                # Every process takes part in every gathering: the last ones repeat a row, which is dropped again.
                own = block[rank * share : (rank + 1) * share]
                own += [block[-1]] * (share - len(own))
                self._generate_and_score_completions(own)
                rewards += self.rollouts.rewards[: len(block)]
        return rewards

    @contextmanager
    def _solving(self, greedy: bool, seed: int) -> Generator[None]:
        """One try for each problem, sampled with ``seed`` or greedy."""
        names = ("environments", "num_generations_eval", "generation_config", "generation_kwargs")
        kept = {name: getattr(self, name) for name in names if hasattr(self, name)}
        engine: Any = getattr(self, "vllm_generation", None)
        temperature = getattr(engine, "temperature", None)
        with leave_no_trace(self):
            try:
                self.num_generations_eval = 1
                if greedy and engine is not None:
                    engine.temperature = 0.0
                elif greedy:
                    self.generation_config = copy.deepcopy(self.generation_config)
                    self.generation_config.do_sample = False
                    self.generation_kwargs = {**self.generation_kwargs, "do_sample": False}
                self.model.eval()
                torch.manual_seed(seed + 1000 * int(self.accelerator.process_index))
                yield
            finally:
                vars(self).update(kept)
                if engine is not None:
                    engine.temperature = temperature


@contextmanager
def leave_no_trace(trainer: Evaluating) -> Generator[None]:
    """Rollouts inside leave no trace: no gradient, and the random state, metrics, logs and mode are as before."""
    names = ("_logs", "_metrics", "_pending_metrics", "_pending_extra_logs", "run_state")
    kept = {name: copy.deepcopy(getattr(trainer, name)) for name in names}
    was_training = trainer.model.training
    try:
        with random_state_kept(trainer), torch.no_grad():
            yield
    finally:
        trainer.model.train(was_training)
        vars(trainer).update(kept)


@contextmanager
def random_state_kept(trainer: Evaluating) -> Generator[None]:
    """Afterwards torch, numpy and Python draw as they would have: rewards and environments may use any."""
    device = trainer.accelerator.device
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
