"""Which tiers and seeds choose defaults, and which only report. A tier that was used for a choice stays in its
task's `tuned_on`: its figures show how well a choice fits, not how well it generalises."""

from __future__ import annotations

from typing import Literal

from gear_rl.arena.task import get_task

Use = Literal["choosing", "reporting"]

TUNING_SEEDS: tuple[int, ...] = (1000, 1001)
"""Seeds of the runs that choose a learning rate; no report has them."""


def reported(held_out: range) -> range:
    """Seeds of the held-out problems of reports: the first three quarters.

    >>> reported(range(1024)), tuning(range(1024))
    (range(0, 768), range(768, 1024))
    """
    return held_out[: 3 * len(held_out) // 4]


def tuning(held_out: range) -> range:
    """Seeds of the held-out problems that choose a learning rate; no report has them."""
    return held_out[len(reported(held_out)) :]


def use_of(task: str, tier: str) -> Use:
    """The use of comparisons on a tier.

    >>> use_of("chain", "hard"), use_of("codebook", "hard")
    ('choosing', 'reporting')
    """
    return "choosing" if tier in get_task(task).tuned_on else "reporting"
