"""How hard the tasks are, and how long training on them takes. Settings only."""

from __future__ import annotations

from dataclasses import dataclass

TASKS = ("chain", "ledger")
"""Every task of the arena."""

OPERATIONS: tuple[str, ...] = (*(f"+{n}" for n in range(1, 10)), *(f"-{n}" for n in range(1, 10)), "x2", "x3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How hard a problem is."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Training settings under which plain GRPO shows something on a tier within minutes, on one CPU core."""

    steps: int
    learning_rate: float
    max_completion_tokens: int
    """Of the whole rollout. Chain: four tokens a step, two for the answer's line, and a little room."""
    rollouts_per_step: int = 128
    num_generations: int = 8
    max_tool_calls: int | None = None
    """Turns with a call after which a rollout ends; None where there are no tools."""


TIERS: dict[str, Tier] = {
    "easy": Tier(steps=(2, 3)),
    "default": Tier(steps=(3, 5)),
    "hard": Tier(steps=(10, 14), cancelled=(0, 2)),
}


DEMOS: dict[str, Demo] = {
    "easy": Demo(steps=20, learning_rate=1e-4, max_completion_tokens=16),
    "default": Demo(steps=30, learning_rate=1e-4, max_completion_tokens=24),
    # A third of the rate: ends where methods can still differ, not near 1.
    "hard": Demo(steps=34, learning_rate=3e-5, max_completion_tokens=60),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTier:
    """How hard a problem of the task "ledger" is."""

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


LEDGER_TIERS: dict[str, LedgerTier] = {
    "easy": LedgerTier(hops=(1, 1)),
    "default": LedgerTier(hops=(1, 3), distractors=1),
    "hard": LedgerTier(hops=(3, 4), aliases=(2, 3), distractors=2, irreversible=True),
}

LEDGER_DEMOS: dict[str, Demo] = {
    "easy": Demo(
        steps=20, learning_rate=1e-4, max_completion_tokens=200, rollouts_per_step=64, max_tool_calls=8
    ),
    "default": Demo(
        steps=30, learning_rate=1e-4, max_completion_tokens=240, rollouts_per_step=64, max_tool_calls=8
    ),
    "hard": Demo(
        steps=30, learning_rate=1e-4, max_completion_tokens=300, rollouts_per_step=64, max_tool_calls=9
    ),
}

LABORATORY_TIERS = {"chain": "hard", "ledger": "default"}
"""By task, the tier in which methods are judged where nobody says which: GRPO must end between its start and 1
there. On the chain's default tier, the demo's, every method ends at 0.94 and none can be told from another."""
