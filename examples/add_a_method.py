"""A method of your own, in one file: only uncertain tokens are credited.

Run it:    gear demo --credit examples.add_a_method:Uncertain --steps 5
Add it:    move the class to src/gear_rl/methods/uncertain.py and list it in src/gear_rl/methods/__init__.py
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gear_rl import Credit, TokenSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertain:
    """Tokens of high student entropy share the completion's advantage; the others get nothing."""

    name: ClassVar[str] = "uncertain"
    source: ClassVar[str] = "an example"

    fork_nats: float = 0.3
    """Entropy, in nats, from which a token counts as a decision."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("student_entropy",)

    def __call__(self, advantage_B: torch.Tensor, signals: TokenSignals) -> Credit:
        fork = (signals.get("student_entropy") >= self.fork_nats) & signals.mask
        share = signals.mask.sum(-1, keepdim=True) / fork.sum(-1, keepdim=True).clamp(min=1)
        segment_id = torch.where(signals.mask, signals.mask.cumsum(-1) - 1, -1)
        return Credit.from_weights(advantage_B, fork * share, segment_id)


if __name__ == "__main__":
    seen = TokenSignals(
        mask=torch.tensor([[True, True, True, False]]),
        student_entropy=torch.tensor([[0.1, 1.5, 0.7, 9.0]]),
    )
    print(Uncertain()(torch.tensor([2.0]), seen).advantage)
