"""What defaults may be chosen on, and what only reports. Whatever has been looked at for a choice stays in the
first list for good: figures from there say how well a choice fits, not how well it does elsewhere."""

from __future__ import annotations

from typing import Literal

Use = Literal["choosing", "reporting"]

CHOOSING: dict[str, tuple[str, ...]] = {
    "chain": ("easy", "default", "hard"),
    "codebook": ("easy", "default", "k8", "k16", "k32"),
}
"""Task and tiers that settings of methods were chosen on, or may be. Every other tier and task only reports."""
TUNING_SEEDS: tuple[int, ...] = (1000, 1001)
"""Seeds of the runs that a learning rate is chosen by; no report has them."""


def reported(held_out: range) -> range:
    """Seeds of the held-out problems that reports are made on: the first three quarters.

    >>> reported(range(1024)), tuning(range(1024))
    (range(0, 768), range(768, 1024))
    """
    return held_out[: 3 * len(held_out) // 4]


def tuning(held_out: range) -> range:
    """Seeds of the held-out problems that a learning rate is chosen by; no report has them."""
    return held_out[len(reported(held_out)) :]


def use_of(task: str, tier: str) -> Use:
    """What a comparison on a tier may be used for.

    >>> use_of("chain", "hard"), use_of("codebook", "hard")
    ('choosing', 'reporting')
    """
    return "choosing" if tier in CHOOSING.get(task, ()) else "reporting"
