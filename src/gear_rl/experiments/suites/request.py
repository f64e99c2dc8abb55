"""What an evaluation is asked for, and one row of what it found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gear_rl.engines.evaluation import interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One suite, and how much of it. What is None is left to the tool, or to the server.

    >>> Request(suite="gsm8k", folder=Path("runs/eval")).concurrency
    1
    """

    suite: str
    folder: Path
    """Takes the tool's own files."""
    limit: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    concurrency: int = 1
    """Requests at a time."""
    categories: Sequence[str] = ()
    tools: bool = False
    """Functions go into the request's own field of tools, not into the prompt."""
    data: Path | None = None
    examples: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the suite's task."""
    network: bool = False
    """Score without isolation, where it cannot be had."""
    user_model: str | None = None
    """Who plays the user of a suite that has one; None for the model itself."""
    user_endpoint: str | None = None
    """Where it answers; None for what its name says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a tool found: rows of a table, and what the report says of how."""

    scores: list[dict[str, Any]]
    about: dict[str, Any]
    failures: str = "requests failed and count as answers"
    """What the number of errors is of, and what the tool does with them."""


def score(
    category: str, metric: str, values: Sequence[float], official: float, errors: int = 0
) -> dict[str, Any]:
    """A row: the tool's own number, with an interval over problems at 95 %.

    Wilson's where every problem is 0 or 1, else the percentile bootstrap; problems are drawn anew, not the tries
    at one. ``errors`` are requests or simulations that failed, counted or left out (``Outcome.failures``).

    >>> row = score("parallel", "accuracy", [1.0, 0.0, 0.0, 0.0], 0.25)
    >>> row["n"], row["score"], [round(end, 3) for end in row["interval"]]
    (4, 0.25, [0.046, 0.699])
    """
    low, high = interval(values)
    row = {
        "category": category,
        "metric": metric,
        "n": len(values),
        "score": official,
        "interval": [low, high],
    }
    return row | {"errors": errors}
