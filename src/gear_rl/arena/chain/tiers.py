"""How hard the task "chain" is, and how long training on it takes. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

from gear_rl.arena.task import Budget

OPERATIONS: tuple[str, ...] = (*(f"+{n}" for n in range(1, 10)), *(f"-{n}" for n in range(1, 10)), "x2", "x3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How hard a problem is.

    >>> Tier(steps=(3, 2))
    Traceback (most recent call last):
    ValueError: steps and cancelled are (fewest, most), got (3, 2) and (0, 0)
    """

    steps: tuple[int, int]
    """Fewest and most steps."""
    cancelled: tuple[int, int] = (0, 0)
    """Fewest and most operations that stand in the prompt but are cancelled."""
    operations: tuple[str, ...] = OPERATIONS
    modulus: int = 100

    def __post_init__(self) -> None:
        if not 1 <= self.steps[0] <= self.steps[1] or not 0 <= self.cancelled[0] <= self.cancelled[1]:
            raise ValueError(f"steps and cancelled are (fewest, most), got {self.steps} and {self.cancelled}")
        if self.steps[1] + self.cancelled[1] > len(self.operations):
            raise ValueError("an operation occurs once in a problem: fewer steps, or more operations")
        if not 2 <= self.modulus <= 100:
            raise ValueError(
                f"results are written with two digits, so modulus is 2 to 100, got {self.modulus}"
            )


TIERS: dict[str, Tier] = {
    "easy": Tier(steps=(2, 3)),
    "default": Tier(steps=(3, 5)),
    "hard": Tier(steps=(10, 14), cancelled=(0, 2)),
}

BUDGETS: dict[str, Budget] = {
    # Four tokens a step, two for the answer's line, and two to spare.
    "easy": Budget(steps=20, learning_rate=1e-4, max_completion_tokens=16),
    "default": Budget(steps=30, learning_rate=1e-4, max_completion_tokens=24),
    # A third of the rate: ends where methods can still differ, not near 1.
    "hard": Budget(steps=34, learning_rate=3e-5, max_completion_tokens=60),
}
