"""What a cell of a comparison is, and the file that holds its numbers. Knows no trainer."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a cell is: two cells of the same spec have the same numbers on the same machine and versions.

    >>> numbers = {"seed": 1, "steps": 9, "rollouts": 128, "n_eval": 64, "first": 0, "samples": 1}
    >>> numbers["n_between"] = 16
    >>> more = {"task": "chain", "tier": "hard", "rate": 3e-5, "engine": {}, "resolved": ""}
    >>> Spec(name="gear:alpha=1", credit={"name": "gear"}, **numbers, **more).file
    'gear_alpha_1-3e-05-1-d443aecc.json'
    """

    name: str
    """The name it is compared under."""
    credit: dict[str, Any]
    task: str
    tier: str
    seed: int
    steps: int
    rollouts: int
    """Per step."""
    rate: float
    """Learning rate."""
    n_eval: int
    first: int
    """Seed of the first of its held-out problems."""
    samples: int
    """Answers to every held-out problem, before and after."""
    n_between: int
    """Held-out problems of the evaluations on the way."""
    engine: dict[str, Any]
    """Settings of the engine beside the tier's own, or the run's."""
    resolved: str
    """The method with all its settings, defaults included: with another default it is another cell."""
    run: dict[str, Any] | None = None
    """The user's own run in place of a task and tier of the arena, which are then its dataset and model."""

    @property
    def file(self) -> str:
        """Its file's name: what a reader looks for, and a digest of all that it is."""
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)[:60]
        return f"{plain}-{self.rate:g}-{self.seed}-{digest(asdict(self))[:8]}.json"


def digest(content: Mapping[str, Any]) -> str:
    """The sha256 of what JSON makes of it.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    True
    """
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> bytes:
    """A file's bytes: the content and its digest, by which `unsealed` knows it again."""
    return (json.dumps({**content, "sha256": digest(content)}, indent=1) + "\n").encode()


def unsealed(file: Path) -> dict[str, Any] | None:
    """The content of such a file; None if it is not there, torn, or not as it was written."""
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(row, dict):
        return None
    content = {key: value for key, value in cast(dict[str, Any], row).items() if key != "sha256"}
    return content if cast(Any, row).get("sha256") == digest(content) else None


def read_cell(spec: Spec, folder: Path) -> dict[str, Any] | None:
    """The cell that lies in the folder, if it is of this spec and as it was written."""
    row = unsealed(folder / spec.file)
    return row if row is not None and row.get("spec") == json.loads(json.dumps(asdict(spec))) else None


def finished(spec: Spec, folder: Path) -> dict[str, Any] | None:
    """The same, None if it failed: a failed cell is run again."""
    row = read_cell(spec, folder)
    return None if row is None or row.get("error") is not None else row


def failed(spec: Spec, error: str) -> dict[str, Any]:
    """A cell without numbers."""
    names = ("task", "tier", "seed", "steps", "rate", "n_eval", "samples")
    return {
        "method": spec.name,
        **{name: getattr(spec, name) for name in names},
        "credit": "",
        "error": error,
        "spec": asdict(spec),
    }
