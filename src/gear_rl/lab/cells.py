"""A cell: one method, one seed of a comparison, as its JSON holds it. Pure: numbers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

Curve = Sequence[tuple[int, float]]
"""Step and accuracy, in the order of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run: how its accuracy went, or why it failed.

    >>> row = {"task": "chain", "tier": "easy", "method": "gear", "seed": 0, "steps": 9, "error": "out of memory"}
    >>> Cell.from_dict(row).failure, Cell.from_dict(row).curve
    ('out of memory', ())
    """

    task: str
    tier: str
    method: str
    """The name it is compared under; two settings of one method need two names."""
    credit: str = ""
    """The method with its settings."""
    seed: int
    steps: int
    n_eval: int = 0
    """Held-out problems of ``accuracy_before`` and ``accuracy_after``."""
    samples: int = 1
    """Sampled answers to each of these problems."""
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    accuracies_before: tuple[float, ...] = ()
    """Of each sampling by itself; their mean is ``accuracy_before``."""
    accuracies_after: tuple[float, ...] = ()
    held_out: tuple[tuple[int, float], ...] = ()
    """Step and accuracy of the evaluations on the way, on fewer problems."""
    curves: dict[str, list[float | None]]
    """Name to one number per step; None where nothing was logged."""
    seconds: float | None = None
    error: str | None
    """Why the run failed; None if it finished."""
    rate: float | None = None
    """Learning rate; None in files of earlier versions."""

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Cell":
        """A cell from its JSON; other fields are ignored. ``ValueError`` for one that lacks what it needs.

        >>> Cell.from_dict({"task": "chain", "error": None})
        Traceback (most recent call last):
        ValueError: cell lacks tier, method, seed, steps; run it again
        """
        needed = ("task", "tier", "method", "seed", "steps")
        if missing := [name for name in needed if name not in row]:
            raise ValueError(f"cell lacks {', '.join(missing)}; run it again")
        known: dict[str, Any] = {"error": None, "curves": {}}
        known |= {field.name: row[field.name] for field in fields(cls) if row.get(field.name) is not None}
        points = [(point["step"], point["accuracy"]) for point in known.get("held_out", ())]
        known["held_out"] = tuple(sorted(points))
        for name in ("accuracies_before", "accuracies_after"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)

    @property
    def failure(self) -> str | None:
        """Why the cell cannot be compared; None if it can."""
        if self.error is not None:
            return self.error
        lacking = [n for n in ("accuracy_before", "accuracy_after") if getattr(self, n) is None]
        return f"no number in {' and '.join(lacking)}" if lacking else None

    @property
    def curve(self) -> Curve:
        """Step and held-out accuracy from before the first step to after the last; empty for a failed cell."""
        if self.failure is not None or self.accuracy_before is None or self.accuracy_after is None:
            return ()
        inside = [point for point in self.held_out if 0 < point[0] < self.steps]
        return ((0, self.accuracy_before), *inside, (self.steps, self.accuracy_after))
