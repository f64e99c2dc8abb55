"""SC-GRPO as we infer it: GEAR token by token with a sibling's success."""

from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from gear_rl.methods.gear import Gear
from gear_rl.settings import settings_class
from gear_rl.types import Credit, TokenSignals


@settings_class
class ScGrpo:
    """The divergence from the policy that sees a success of its group weights each token.

    SC-GRPO (arXiv:2606.18810) and HSD (arXiv:2606.15576), **inferred**: the advantage times a KL to the policy
    that sees a verified rollout of the group. We have not seen their exact weights and use those of
    ``gear:tokens``.

    >>> import torch
    >>> signals = TokenSignals(
    ...     mask=torch.ones(1, 3, dtype=torch.bool),
    ...     divergence=torch.tensor([[0.0, 1.0, 0.5]]),
    ...     student_logprob=torch.tensor([[-0.1, -0.5, -0.5]]),
    ...     teacher_logprob=torch.tensor([[-0.1, -2.0, -1.0]]),
    ... )
    >>> ScGrpo(of=Gear(onset_rule="never", aftermath=0.0))(torch.tensor([-1.0]), signals).advantage
    tensor([[-0.3333, -1.6667, -1.0000]])
    """

    name: ClassVar[str] = "sc_grpo"
    source: ClassVar[str] = "arXiv:2606.18810 (inferred)"

    of: Gear = Gear(onset_rule="never")
    """The GEAR that weights the tokens."""

    @property
    def needs(self) -> tuple[str, ...]:
        return self.of.needs

    @property
    def engine_settings(self) -> Mapping[str, Any]:
        """GEAR's, with another context."""
        return {**self.of.engine_settings, "privileged_sources": ["sibling"]}

    @property
    def makes_segments(self) -> bool:
        """As GEAR does."""
        return self.of.makes_segments

    def __call__(self, advantage_B: Float[Tensor, " B"], signals: TokenSignals) -> Credit:
        return self.of(advantage_B, signals)
