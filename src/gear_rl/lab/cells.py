"""A cell: one training run of the comparison's matrix, as it lies in its JSON file.

Read from files that other processes wrote, so everything is checked. Knows no statistics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

Curve = Sequence[tuple[int, float]]
"""Step and accuracy, in the order of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method, one seed: how accuracy went, or why the run failed.

    >>> row = {"task": "chain", "tier": "easy", "method": "gear", "seed": 0, "steps": 9, "error": "out of memory"}
    >>> Cell.from_dict(row).failure, Cell.from_dict(row).curve
    ('out of memory', ())
    """

    task: str
    tier: str
    method: str
    """The name it is compared under; two settings of one method need two names."""
    credit: str
    """The method with its settings."""
    seed: int
    steps: int
    """Optimizer steps that the run was to take."""
    n_eval: int
    """Held-out problems of ``accuracy_before`` and ``accuracy_after``."""
    samples: int
    """Sampled answers to each of these problems; 1 in files of earlier versions."""
    accuracy_before: float | None
    accuracy_after: float | None
    accuracies_before: tuple[float, ...]
    """Of each sampling by itself; their mean is ``accuracy_before``. Empty in files of earlier versions."""
    accuracies_after: tuple[float, ...]
    held_out: tuple[tuple[int, float], ...]
    """Step and accuracy of the evaluations on the way, on fewer problems, in the order of the steps."""
    curves: dict[str, list[float | None]]
    """Name to one number per step; None where nothing was logged."""
    seconds: float | None
    error: str | None
    """Why the run failed; None if it finished."""
    rate: float | None = None
    """Learning rate; None in files of earlier versions."""

    @classmethod
    def from_dict(cls, row: Mapping[str, object]) -> "Cell":
        """A cell from its JSON; ``ValueError`` names the field, the value and what it must be.

        Fields that it does not know are ignored. A failed cell needs no numbers but ``seed`` and ``steps``. An
        accuracy that is no finite number counts as none.

        >>> Cell.from_dict({"task": "chain"})
        Traceback (most recent call last):
        ValueError: cell lacks tier, method, credit, seed, steps, n_eval, ...; run it again
        """
        missing = [f.name for f in fields(cls) if f.name not in row and f.name not in _LATER]
        if row.get("error") is not None:
            missing = [name for name in missing if name in ("task", "tier", "method", "seed", "steps")]
        if missing:
            raise ValueError(f"cell lacks {', '.join(missing)}; run it again")
        evaluations = cast(list[Mapping[str, object]], row.get("held_out") or [])
        points = [(_whole("held_out step", e.get("step")), _share(e.get("accuracy"))) for e in evaluations]
        curves = cast(Mapping[str, list[object]], row.get("curves") or {})
        error = row.get("error")
        samples = _whole("samples", row.get("samples", 1), least=1) if error is None else 1
        return cls(
            **{name: str(row.get(name, "")) for name in ("task", "tier", "method", "credit")},
            seed=_whole("seed", row["seed"]),
            steps=_whole("steps", row["steps"], least=1),
            n_eval=_whole("n_eval", row.get("n_eval"), least=1) if error is None else 0,
            samples=samples,
            accuracies_before=_shares("accuracies_before", row.get("accuracies_before"), samples),
            accuracies_after=_shares("accuracies_after", row.get("accuracies_after"), samples),
            accuracy_before=_share(row.get("accuracy_before")),
            accuracy_after=_share(row.get("accuracy_after")),
            held_out=tuple((step, share) for step, share in sorted(points, key=_step) if share is not None),
            curves={name: [_number(value) for value in values] for name, values in curves.items()},
            seconds=_number(row.get("seconds")),
            error=None if error is None else str(error),
            rate=_number(row.get("rate")),
        )

    @property
    def failure(self) -> str | None:
        """Why the cell cannot be compared, in words; None if it can."""
        if self.error is not None:
            return self.error
        lacking = [n for n in ("accuracy_before", "accuracy_after") if getattr(self, n) is None]
        return f"no number in {' and '.join(lacking)}" if lacking else None

    @property
    def curve(self) -> Curve:
        """Step and held-out accuracy from before the first step to after the last; empty for a failed cell."""
        if self.failure is not None or self.accuracy_before is None or self.accuracy_after is None:
            return ()
        inside = dict(point for point in self.held_out if 0 < point[0] < self.steps)
        return ((0, self.accuracy_before), *inside.items(), (self.steps, self.accuracy_after))


_LATER = ("rate", "samples", "accuracies_before", "accuracies_after")
"""Fields that the files of earlier versions have not."""


def _shares(name: str, values: object, count: int) -> tuple[float, ...]:
    shares = tuple(_share(value) for value in cast(list[object], values or []))
    if shares and (len(shares) != count or None in shares):
        raise ValueError(f"{name}: {values!r} are not {count} accuracies, one per sample; run the cell again")
    return cast(tuple[float, ...], shares)


def _step(point: tuple[int, float | None]) -> int:
    return point[0]


def _whole(name: str, value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r} is no whole number from {least} on; run the cell again")
    return value


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(cast(Any, value)) if good else None


def _share(value: object) -> float | None:
    number = _number(value)
    if number is not None and not 0 <= number <= 1:
        raise ValueError(f"accuracy: {number} is no share of problems; give a number from 0 to 1")
    return number
