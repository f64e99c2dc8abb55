"""The student's hidden states out of the pass in which TRL computes the old log-probabilities of its rollouts.

TRL runs it where weights change before the rollouts were trained on for the last time, and with vLLM, whose
log-probabilities it corrects. The student then needs no pass of our own. Knows no method.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gear_rl.engines.trl.config import SHARDED
from gear_rl.model.forwards import capturing
from gear_rl.signals.passes import KeptStates
from gear_rl.tensor.logits import predicting_positions

if TYPE_CHECKING:
    from gear_rl.engines.trl.trainer import GEARTrainer


class OldPass:
    """Captures the first forward that TRL runs for the log-probabilities of a batch of rollouts.

    >>> old, ids = OldPass(), torch.ones(1, 5, dtype=torch.long)
    >>> model = nn.Module()
    >>> model.base_model = nn.Identity()
    >>> logprob, _ = old.run(lambda model, *_: model.base_model((torch.zeros(1, 5, 8), 0)), model, ids, ids, 3)
    >>> old.states_of(logprob)(torch.tensor([0]), ids[:, 2:].bool()).shape
    torch.Size([3, 8])
    """

    def __init__(self) -> None:
        self._states: KeptStates | None = None
        self._logprob: Tensor | None = None
        self._rows, self._sound = 0, True

    def run(self, call: Callable[..., Any], model: nn.Module, *args: Any, **options: Any) -> Any:
        """What TRL's ``call`` returns; the first ``args`` are ids, attention mask and tokens to keep."""
        if self._states is not None:  # the reference's, with the adapter off
            return call(model, *args, **options)
        self._states = KeptStates(args[1][:, -int(args[2]) :].bool())
        with capturing(model, self._take):
            result = call(model, *args, **options)
        self._logprob = result[0]
        return result

    def states_of(self, logprob: Tensor | None) -> KeptStates | None:
        """The states that gave these log-probabilities; None if they came from elsewhere or a row is missing."""
        states = self._states
        whole = states is not None and self._sound and self._rows == len(states.mask)
        return states if whole and logprob is self._logprob else None

    @torch.no_grad()
    def _take(self, hidden_BSD: Float[Tensor, "n S D"]) -> None:
        """The next rows' last hidden states, prompt included."""
        assert self._states is not None
        attention, end = self._states.mask, self._rows + len(hidden_BSD)
        self._sound &= end <= len(attention) and hidden_BSD.shape[1] > attention.shape[1]
        if self._sound:
            batch = torch.arange(self._rows, end, device=attention.device)
            part = predicting_positions(hidden_BSD.detach(), attention.shape[1])
            self._states.take(batch, attention[batch], part[attention[batch]])
        self._rows = end


def shares_old_pass(trainer: "GEARTrainer") -> bool:
    """Whether TRL's pass gives the hidden states of a pass of our own.

    It does not with dropout, noise or batch statistics, nor where TRL counts positions from the padding on
    (GPT-2). What was never run counts as no.
    """
    args = trainer.args
    return (
        trainer.sharding not in SHARDED
        and not args.use_liger_kernel
        and not args.torch_compile
        and not args.neftune_noise_alpha
        and is_deterministic(trainer.model)
        and not trainer.padding_moves
    )


def is_deterministic(model: nn.Module) -> bool:
    """Whether a forward in training mode is the same as in evaluation: no dropout, noise or batch statistics.

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
