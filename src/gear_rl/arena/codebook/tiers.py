"""How hard the task "codebook" is, and how long training on it takes. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

from gear_rl.arena.codebook.book import SYMBOLS
from gear_rl.arena.task import Budget

MOST_SYMBOLS = len(SYMBOLS) // 2
"""As many symbols must be left for the reference of another problem."""
MOST_FILLER = 3
"""The warm start has no demonstration with more words between decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How many decisions a completion has, what stands between them, and what is paid.

    >>> Tier(symbols=12, filler=9)
    Traceback (most recent call last):
    ValueError: filler: 9 is not from 0 to 3, the words between decisions that the student has learned to write
    """

    symbols: int
    """Decisions per completion."""
    filler: int = 0
    """Irrelevant words between two decisions; which ones is up to the student."""
    exact: bool = False
    """Whether all codes must be right; else the reward is the share that is."""

    def __post_init__(self) -> None:
        if not 1 <= self.symbols <= MOST_SYMBOLS:
            raise ValueError(
                f"symbols: {self.symbols} is not from 1 to {MOST_SYMBOLS}, half of the codebook; "
                "the other half is for other problems' references"
            )
        if not 0 <= self.filler <= MOST_FILLER:
            raise ValueError(
                f"filler: {self.filler} is not from 0 to {MOST_FILLER}, the words between decisions that the "
                "student has learned to write"
            )

    @property
    def num_tokens(self) -> int:
        """The length of a right completion: a lead, two tokens a decision, the filler, the closing token."""
        return 2 + 2 * self.symbols + self.filler * (self.symbols - 1)


TIERS: dict[str, Tier] = {
    "easy": Tier(symbols=4),
    "default": Tier(symbols=12),
    "hard": Tier(symbols=24),
    "words": Tier(symbols=20, filler=2),
    "exact": Tier(symbols=4, exact=True),
    **{f"k{symbols}": Tier(symbols=symbols) for symbols in (8, 16, 32)},
}


def _budget(tier: str) -> Budget:
    """Few rollouts a step, where credit is scarce; two tokens to spare."""
    return Budget(
        steps=40,
        learning_rate=4e-4,
        max_completion_tokens=TIERS[tier].num_tokens + 2,
        rollouts_per_step=16,
    )


BUDGETS: dict[str, Budget] = {tier: _budget(tier) for tier in TIERS}
