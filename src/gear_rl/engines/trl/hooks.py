"""The student's hidden states out of forwards that TRL runs anyway, and when they are as good as our own.

TRL calls ``_get_per_token_logps_and_entropies`` for log-probabilities: after the rollouts where it needs old
ones, and in every loss. With a forward hook on the backbone meanwhile no student pass is needed. Knows no
method.
"""

import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gear_rl.engines.trl.checks import SHARDED
from gear_rl.engines.trl.trainer_type import Trainer
from gear_rl.signals.forwards import capturing
from gear_rl.signals.score import KeptStates
from gear_rl.tensor.logits import predicting_positions

logger = logging.getLogger(__name__)


class StudentPass:
    """The hidden states that predict each token of some completions, collected from TRL's forwards.

    >>> student = StudentPass(torch.ones(2, 3, dtype=torch.bool))
    >>> student.take(torch.zeros(1, 5, 8))  # one row: two tokens of the prompt, three of the completion
    >>> student.whole
    False
    """

    def __init__(self, attention: Bool[Tensor, "B T"]) -> None:
        self.states = KeptStates(attention)
        self.logprob: Tensor | None = None
        """What TRL made of the same forwards."""
        self._rows, self._sound = 0, True

    @torch.no_grad()
    def take(self, hidden_BSD: Float[Tensor, "n S D"]) -> None:
        """The next rows' last hidden states, prompt included."""
        attention, end = self.states.mask, self._rows + len(hidden_BSD)
        self._sound &= end <= len(attention) and hidden_BSD.shape[1] > attention.shape[1]
        if self._sound:
            batch = torch.arange(self._rows, end, device=attention.device)
            part = predicting_positions(hidden_BSD.detach(), attention.shape[1])
            self.states.take(batch, attention[batch], part[attention[batch]])
        self._rows = end

    @property
    def whole(self) -> bool:
        """Whether every row was seen, once."""
        return self._sound and self._rows == len(self.states.mask)


def captured(
    call: Callable[..., Any], model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, StudentPass | None]:
    """What TRL's ``call`` returns, and the hidden states of its forwards; None where not all were captured."""
    if len(args) < 3:  # ids, attention mask, tokens to keep: another TRL may name them
        return call(model, *args, **options), None
    student = StudentPass(args[1][:, -int(args[2]) :].bool())
    with capturing(model, student.take):
        result = call(model, *args, **options)
    student.logprob = result[0]
    return result, student if student.whole else None


def shares(trainer: Trainer) -> bool:
    """Whether the student's hidden states in TRL's forwards are those of a pass of our own.

    Not where a forward in training mode differs from one that scores (dropout, noise, batch statistics), not
    where TRL's forwards count positions from the padding on (``padding_moves_positions``), and not where it was
    never run: sharded weights, Liger's kernels, ``torch.compile``, images.
    """
    args = trainer.args
    return (
        args.student_pass == "auto"
        and trainer.sharding not in SHARDED
        and not args.use_liger_kernel
        and not args.torch_compile
        and not getattr(args, "neftune_noise_alpha", None)
        and not getattr(trainer, "_is_vlm", False)
        and trainer.deterministic
        and not trainer.padding_moves
    )


def warn_of_positions(trainer: Trainer, attention_BP: Int[Tensor, "B P"]) -> None:
    """Log, once in a run, that TRL's loss scores these prompts at other positions than our signals are made at.

    Only where padding moves positions and some process has a padded prompt; every process must call this.
    """
    if trainer.rollouts.warned_of_positions or not trainer.padding_moves:
        return
    padded = cast(Tensor, trainer.accelerator.gather((attention_BP == 0).any().long()[None]))
    if not padded.any():
        return
    trainer.rollouts.warned_of_positions = True
    if trainer.accelerator.is_main_process:
        logger.warning(
            "model: %s has absolute positions, and prompts of this batch are padded on the left. TRL's loss "
            "counts positions from the first padding token on, so it scores the tokens of a padded row at later "
            "positions than they were sampled at; the signals of %r are made at the positions of the sampling. "
            "The log-probabilities of the two differ there. Prompts of one length avoid this, one prompt per "
            "process and batch of rollouts too (per_device_train_batch_size * steps_per_generation = "
            "num_generations), or a model with rotary positions",
            trainer.model.config.model_type,
            trainer.credit.name,
        )


def makes_old_pass(trainer: Trainer) -> bool:
    """Whether TRL computes the log-probabilities of its rollouts before it trains on them.

    >>> from types import SimpleNamespace
    >>> args = SimpleNamespace(gradient_accumulation_steps=4, steps_per_generation=8, num_iterations=1)
    >>> makes_old_pass(SimpleNamespace(args=args))  # the weights change between the two halves of the rollouts
    True
    """
    args = trainer.args
    corrects = bool(getattr(trainer, "use_vllm", False)) and bool(
        getattr(trainer, "vllm_importance_sampling_correction", False)
    )
    return (
        corrects
        or args.gradient_accumulation_steps % (cast(int, args.steps_per_generation) * args.num_iterations)
        != 0
    )


def is_deterministic(model: nn.Module) -> bool:
    """Whether a forward in training mode is the same as in evaluation: no dropout, no noise, no batch statistics.

    >>> is_deterministic(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.0)))
    True
    >>> is_deterministic(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1)))
    False
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return False
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return False
        # transformers keeps the rate of a functional dropout, or of a router's noise, as a plain number.
        for name, value in vars(module).items():
            noisy = any(word in name for word in ("drop", "jitter", "noise"))
            if noisy and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return False
    return True
