"""How hard the task "errands" is, and how long training on it takes. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

from gear_rl.arena.task import Budget

MOST_REQUESTS = 24
"""As many of the 48 items must be left for the reference of another problem."""
_TURN_TOKENS = 20
"""A call and its answer, with the header of the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How many requests an agent has to settle.

    >>> Tier(requests=6).calls
    12
    >>> Tier(requests=25)
    Traceback (most recent call last):
    ValueError: requests: 25 is not from 1 to 24, half of the items; the other half is for other references
    """

    requests: int

    def __post_init__(self) -> None:
        if not 1 <= self.requests <= MOST_REQUESTS:
            raise ValueError(
                f"requests: {self.requests} is not from 1 to {MOST_REQUESTS}, half of the items; "
                "the other half is for other references"
            )

    @property
    def calls(self) -> int:
        """How many calls count: one to settle each request, and as many to waste."""
        return 2 * self.requests


TIERS: dict[str, Tier] = {
    "easy": Tier(requests=3),
    "default": Tier(requests=6),
    "hard": Tier(requests=10),
}


def _budget(tier: Tier) -> Budget:
    """Few rollouts a step, where credit is scarce. A rollout may make calls that no longer count, so that the one
    left unanswered at its end is never one that does."""
    return Budget(
        steps=40,
        learning_rate=4e-4,
        max_completion_tokens=_TURN_TOKENS * (tier.calls + 2),
        rollouts_per_step=16,
        max_tool_calls=tier.calls + 2,
    )


BUDGETS: dict[str, Budget] = {name: _budget(tier) for name, tier in TIERS.items()}
