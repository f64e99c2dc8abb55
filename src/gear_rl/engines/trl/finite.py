"""A step whose loss or gradient is not finite: the run stops, or leaves the step out, before a weight changes."""

import logging
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gear_rl.engines.trl.trainer_type import Trainer

logger = logging.getLogger(__name__)

STOP, SKIP = "stop", "skip"
NON_FINITE_STEPS = (STOP, SKIP)


class FiniteSteps:
    """Watches the losses of a step's micro-batches, and judges the step once its gradient's norm is known.

    >>> steps = FiniteSteps()
    >>> steps.add(torch.tensor(1.0)), steps.add(torch.tensor(2.0))
    (None, None)
    >>> steps.take(torch.tensor(torch.inf)), steps.take(torch.tensor(0.5))
    ('gradient norm inf', None)
    """

    def __init__(self) -> None:
        self._loss: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        """The loss of one micro-batch, without waiting for it."""
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def take(self, norm: Tensor | float | None, scaled: bool = False) -> str | None:
        """What is wrong with the step that ends here; None if nothing is. One number crosses from the device.

        ``scaled``: under fp16 a gradient that overflows is ordinary, its scaler leaves the step out by itself.
        """
        loss, self._loss = self._loss, None
        looked_at = [torch.zeros(()) if loss is None else loss]
        if norm is not None and not scaled:
            whole = norm.full_tensor() if isinstance(norm, DTensor) else torch.as_tensor(norm)
            looked_at.append(whole.to(looked_at[0]))
        values = torch.stack([x.detach().float().reshape(()) for x in looked_at])
        if bool(values.isfinite().all()):
            return None
        words = ("loss", "gradient norm")
        return ", ".join(
            f"{word} {float(x):g}" for word, x in zip(words, values, strict=False) if not x.isfinite()
        )


def count_rewards(trainer: Trainer, per_function: Tensor) -> None:
    """Log how many rewards of a training batch, (rollouts, functions), are infinite; warn of the first.

    NaN is no reward: TRL takes it, as it takes None, for a function that abstained.
    """
    each = per_function.isinf().sum(0)
    count = int(each.sum())
    trainer._metrics["train"]["gear/rewards/non_finite"].append(float(count))
    if count and trainer.accelerator.is_main_process and not trainer.rollouts.warned_of_rewards:
        trainer.rollouts.warned_of_rewards = True
        names = [name for name, some in zip(trainer.reward_func_names, each.tolist(), strict=True) if some]
        logger.warning(
            "step %d: %d rewards are infinite (%s); all completions of such a group get no advantage. "
            "gear/rewards/non_finite counts them from here on",
            trainer.state.global_step,
            count,
            ", ".join(names),
        )


def judge_step(trainer: Trainer, model: nn.Module, norm: Any, last_checkpoint: str | None) -> None:
    """Before the optimizer's step: ``FloatingPointError``, or with 'skip' no gradient is left to step with.

    Every process must call this, and all do the same: else their weights would part.
    """
    accelerator = trainer.accelerator
    wrong = trainer.finite_steps.take(norm, scaled=getattr(accelerator, "scaler", None) is not None)
    if accelerator.num_processes > 1:
        own = torch.tensor([float(wrong is not None)], device=accelerator.device)
        if bool(cast(Tensor, accelerator.gather(own)).any()):
            wrong = wrong or "the loss of another process"
    if wrong is None:
        return
    step = trainer.state.global_step + 1
    if trainer.args.non_finite_step == SKIP:
        model.zero_grad(set_to_none=True)  # an optimizer leaves out what has no gradient
        trainer._metrics["train"]["gear/skipped_steps"].append(1.0)
        if accelerator.is_main_process:
            logger.warning("step %d: not finite (%s); no weight changes in this step", step, wrong)
        return
    applied = trainer.sharding == "DEEPSPEED"  # its engine steps inside the backward
    state = "DeepSpeed has applied it already" if applied else "no weight was changed by it"
    known = (
        f"the last good checkpoint is {last_checkpoint}" if last_checkpoint else "no checkpoint was saved yet"
    )
    raise FloatingPointError(
        f"step {step}: not finite ({wrong}); {state}, and {known}. A lower learning_rate or max_grad_norm, or "
        "looking at the rewards and the data of this step, is the usual cure; non_finite_step: skip leaves such "
        "steps out"
    )
