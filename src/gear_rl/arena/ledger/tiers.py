"""How hard the task "ledger" is, and how long training on it takes. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

from gear_rl.arena.task import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTier:
    """How hard a problem is.

    >>> LedgerTier(hops=(1, 5))
    Traceback (most recent call last):
    ValueError: hops are (fewest, most) from 1 to 4, got (1, 5)
    """

    hops: tuple[int, int]
    """Fewest and most look-ups of people."""
    aliases: tuple[int, int] = (1, 1)
    """Fewest and most relations that the instruction names by their alias."""
    distractors: int = 0
    """Tools that are of no use: 0 to 2."""
    irreversible: bool = False
    """Whether only one payment is accepted."""

    def __post_init__(self) -> None:
        if not 1 <= self.hops[0] <= self.hops[1] <= 4:
            raise ValueError(f"hops are (fewest, most) from 1 to 4, got {self.hops}")
        if not 0 <= self.aliases[0] <= self.aliases[1]:
            raise ValueError(f"aliases are (fewest, most), got {self.aliases}")
        if self.distractors not in (0, 1, 2):
            raise ValueError(f"distractors is 0, 1 or 2, got {self.distractors}")


TIERS: dict[str, LedgerTier] = {
    "easy": LedgerTier(hops=(1, 1)),
    "default": LedgerTier(hops=(1, 3), distractors=1),
    "hard": LedgerTier(hops=(3, 4), aliases=(2, 3), distractors=2, irreversible=True),
}

BUDGETS: dict[str, Budget] = {
    "easy": Budget(
        steps=20, learning_rate=1e-4, max_completion_tokens=200, rollouts_per_step=64, max_tool_calls=8
    ),
    "default": Budget(
        steps=30, learning_rate=1e-4, max_completion_tokens=240, rollouts_per_step=64, max_tool_calls=8
    ),
    "hard": Budget(
        steps=30, learning_rate=1e-4, max_completion_tokens=300, rollouts_per_step=64, max_tool_calls=9
    ),
}
