"""A run of a comparison in numbers.

Pure: no training, no figures. docs/laboratory.md names the keys.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

RUNS = "comparison.jsonl"
"""The file of a comparison in its folder."""
Outcome = Literal["accuracy", "reward", "success"]
"""What is compared: an arena task's own measure; of a user's run the mean reward, or the share that is right."""
Curve = Sequence[tuple[int, float]]
"""Step and outcome, in the order of the steps."""


class Frozen(BaseModel):
    """A value that is checked when it is read: no unknown key, no NaN, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Score(Frozen):
    """The held-out problems, answered once or several times after a step of the training.

    >>> score = Score(step=8, rewards=(0.75, 0.25), successes=(0.5, 0.0))
    >>> score.value("reward"), score.value("success")
    (0.5, 0.25)
    """

    step: int
    rewards: tuple[float, ...]
    """Mean reward of every sampling."""
    successes: tuple[float, ...] = ()
    """Share of the answers that are right, of every sampling; empty in runs that did not count them."""

    def value(self, outcome: Outcome) -> float:
        """The mean over the samplings of what is compared."""
        return fmean(self.successes if outcome == "success" else self.rewards)


class Cell(Frozen):
    """A run; without an error it has a score before and after."""

    task: str
    tier: str
    method: str
    """The name that it is compared under."""
    credit: str = ""
    """The method with all its settings."""
    seed: int
    steps: int
    rate: float | None = None
    """Learning rate; None in runs that had the tier's own."""
    n_eval: int
    samples: int = 1
    before: Score | None = None
    held_out: tuple[Score, ...] = ()
    """In between."""
    after: Score | None = None
    beside: dict[str, tuple[float, float]] = {}
    """What is measured beside the outcome, by name: before and after."""
    curves: dict[str, tuple[float | None, ...]] = {}
    """Of the training, a value for each step."""
    graded: bool = False
    """Whether two right rewards were seen, or two wrong ones: their mean is the outcome, else the share right."""
    rewards: tuple[float, float] | None = None
    """The lowest and the highest held-out reward."""
    full_marks: float = 1.0
    seconds: float | None = None
    versions: dict[str, str] = {}
    error: str | None = None

    @model_validator(mode="after")
    def _has_its_ends(self) -> "Cell":
        if self.error is None and (self.before is None or self.after is None):
            raise ValueError(f"{self.method}, seed {self.seed}: no score before or after, and no error")
        return self

    def ends(self, outcome: Outcome) -> tuple[float, float] | None:
        """Before and after; None for a run that failed."""
        curve = self.curve(outcome)
        return (curve[0][1], curve[-1][1]) if curve else None

    def curve(self, outcome: Outcome) -> Curve:
        """From before the first step to after the last; empty for a run that failed."""
        scores = [self.before, *self.held_out, self.after] if self.error is None else []
        return [(score.step, score.value(outcome)) for score in scores if score is not None]


def name_at_rate(baseline: str, rate: float) -> str:
    """The name of the baseline's runs at a rate that another method chose.

    >>> name_at_rate("uniform", 4e-4)
    'uniform@0.0004'
    """
    return f"{baseline}@{rate:g}"


def outcome_of(cells: Sequence[Cell]) -> Outcome:
    """What a user's own runs are compared by: the mean reward if rewards are graded, else the share right."""
    return "reward" if any(cell.graded for cell in cells) else "success"


def plain_fields(value: Frozen, **left_out: Any) -> dict[str, Any]:
    """The value for JSON, without what is as it is by default."""
    return value.model_dump(mode="json", exclude_defaults=True, **left_out)
