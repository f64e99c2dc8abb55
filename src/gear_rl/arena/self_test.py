"""What the self tests of all tasks share. Knows no task."""

from __future__ import annotations


def expect(holds: bool, tier: str, seed: int) -> None:
    """Raise where a promise is broken; a plain `assert` would vanish under `python -O`.

    >>> expect(False, "easy", 7)
    Traceback (most recent call last):
    AssertionError: broken promise in tier 'easy', seed 7
    """
    if not holds:
        raise AssertionError(f"broken promise in tier {tier!r}, seed {seed}")
