"""TRL's evaluation loop, with pass@1 and pass@k of every held-out problem beside its own metrics."""

from collections.abc import Callable
from typing import Any, cast

import torch

from gear_rl.engines.evaluation import success_metrics
from gear_rl.engines.trl.solve import solve
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
