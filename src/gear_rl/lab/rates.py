"""Every method at its own best learning rate: a grid, widened until the best is inside. Knows no run."""

from collections.abc import Mapping

FACTOR = 2.0
"""Between neighbours of the grid."""
MOST_STEPS = 3
"""How far the grid is widened on either side, in neighbours, before the best is left at its edge."""


def grid(rate: float, count: int) -> list[float]:
    """So many rates around a task's own, which is the second of four; one is the task's own.

    >>> grid(4e-4, 4), grid(4e-4, 1)
    ([0.0002, 0.0004, 0.0008, 0.0016], [0.0004])
    """
    return [_rounded(rate * FACTOR ** (n - (count - 1) // 2)) for n in range(count)]


def best(accuracy: Mapping[float, float]) -> float:
    """The rate with the highest accuracy; of equal ones the smallest.

    >>> best({0.1: 0.5, 0.2: 0.75, 0.4: 0.75})
    0.2
    """
    return min(accuracy, key=lambda rate: (-accuracy[rate], rate))


def next_rate(accuracy: Mapping[float, float], first: list[float]) -> float | None:
    """The rate to try next: beyond the edge that the best one lies at; None if it lies inside or too far out.

    ``first`` is the grid that was begun with. A grid of one is a choice of the user's and stays.

    >>> next_rate({0.1: 0.5, 0.2: 0.75}, [0.1, 0.2]), next_rate({0.1: 0.5, 0.2: 0.75, 0.4: 0.5}, [0.1, 0.2])
    (0.4, None)
    """
    chosen, low, high = best(accuracy), min(accuracy), max(accuracy)
    if len(first) < 2 or low < chosen < high:
        return None
    beyond = _rounded(chosen * FACTOR if chosen == high else chosen / FACTOR)
    limit = FACTOR**MOST_STEPS * 1.01
    return beyond if min(first) / limit <= beyond <= max(first) * limit else None


def _rounded(rate: float) -> float:
    """Two ways to the same rate must meet in the same number: it names a file."""
    return float(f"{rate:.4g}")
