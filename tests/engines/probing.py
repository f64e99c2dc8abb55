"""A method that keeps what the engine shows it, and signals of groups that two processes share."""

import dataclasses
from typing import Any

import torch

from gear_rl.methods import AgentOpsd, EntropyForks, Gigpo, Igpo, MtGrpo, Rlcsd, Shuffled, Stare
from gear_rl.tensor.groups import on_turns
from gear_rl.tensor.segments import turn_ids
from gear_rl.types import Credit, Signal, TokenSignals, is_per_row

BY_SIZE = AgentOpsd(width=1.0, epsilon=1.0)
"""By default two turns always have a z-score of 1 and -1, whatever the group."""
COMPARING = (
    Gigpo(turn_rewards=True),
    MtGrpo(),
    Igpo(),
    BY_SIZE,
    Stare(),
    EntropyForks(),
    Rlcsd(squash_nats=1.0, threshold=0.2),
    Shuffled(of=Gigpo()),
)
"""Methods that compare completions with those of other processes."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Gives every token its advantage, and ``bonus`` on top."""

    needs: tuple[str | Signal, ...] = ()
    additive: bool = False
    bonus: float = 0.0
    name: str = "probe"
    source: str = "test"
    shown: list[Any] = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, advantage_B, signals):
        self.shown.append((advantage_B, signals))
        segment_id = torch.where(signals.mask, 0, -1)
        credit = Credit.from_weights(advantage_B, torch.ones(signals.mask.shape), segment_id)
        return Credit(advantage=credit.advantage + self.bonus * signals.mask, segment_id=segment_id)


def torn() -> tuple[torch.Tensor, TokenSignals]:
    """Three groups of four, of which a cut in the middle tears the second; the first six rows are shorter."""
    g = torch.Generator().manual_seed(0)
    length = torch.tensor([5, 7, 1, 0, 6, 7, 11, 3, 9, 10, 2, 11])
    mask = torch.arange(11) < length[:, None]
    mask[:, 3] = False
    turn_id = turn_ids(mask)

    def per_turn(values):
        return on_turns(values, turn_id)

    advantage_B = torch.randn(12, generator=g)
    reward_B = torch.randint(0, 3, (12,), generator=g).float()
    return advantage_B, TokenSignals(
        mask=mask,
        turn_id=turn_id,
        group_B=torch.arange(12) // 4,
        reward_B=reward_B,
        success_B=(reward_B >= 1).float(),
        turn_reward=per_turn(torch.rand(12, 11, generator=g)),
        anchor_id=torch.where(mask, per_turn(torch.randint(0, 2, (12, 11), generator=g)), -1),
        answer_confidence=per_turn(torch.rand(12, 11, generator=g)),
        token_id=torch.where(mask, torch.randint(150_000, (12, 11), generator=g), -1),
        student_logprob=-torch.rand(12, 11, generator=g),
        teacher_logprob=-torch.rand(12, 11, generator=g),
        student_entropy=torch.where(mask, 0.4 * torch.rand(12, 11, generator=g), 0.0),
    )


def part(signals: TokenSignals, rows: slice) -> TokenSignals:
    """Some rows, as wide as the longest of them."""
    width = int(signals.mask[rows].any(0).nonzero().max()) + 1
    values = {n: x[rows] if is_per_row(n) else x[rows, :width] for n, x in signals.values.items()}
    return TokenSignals(mask=signals.mask[rows, :width], turn_id=signals.turn_id[rows, :width], values=values)
