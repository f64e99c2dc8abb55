"""What a run of a comparison is, and the file of its numbers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from gear_rl.files import replace_file, without_secrets
from gear_rl.lab.cells import Cell, Frozen, plain_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A run; equal specs give the same numbers on the same machine and versions."""

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
    between: bool
    """Whether they are also answered in between, once each."""
    engine: dict[str, Any]
    """Settings of the engine beside those of the tier or the user's run."""
    resolved: str
    """The method with all its settings: a changed default makes another run."""
    sft: float = 0.0
    """Share of the steps, from the first on, that fine-tune on the privileged text in place of the method."""
    run: dict[str, Any] | None = None
    """The user's own run in place of the arena's; ``task`` and ``tier`` are then its dataset and model."""

    @property
    def sft_steps(self) -> int:
        """Steps of fine-tuning, before those of the method."""
        return round(self.sft * self.steps)

    @property
    def file(self) -> str:
        """Its file's name: method, rate, seed, and a digest of all fields."""
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)[:60]
        return f"{plain}-{self.rate:g}-{self.seed}-{digest(self.file_fields)[:8]}.json"

    @property
    def file_fields(self) -> dict[str, Any]:
        """Its fields as files hold them."""
        return without_secrets(asdict(self))


def digest(content: Mapping[str, Any]) -> str:
    """The sha256 of its JSON.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    True
    """
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_of_folder(folder: str) -> bytes:
    """Of each file in it; nothing for a name that is no folder, as a model's on the hub."""
    files = (file for file in sorted(Path(folder).rglob("*")) if file.is_file())
    return b"".join(_digest_of_file(file, file.stat().st_mtime_ns) for file in files)


@cache
def _digest_of_file(file: Path, changed: int) -> bytes:
    with file.open("rb") as content:
        return file_digest(content, "sha256").digest()


class _File(Frozen):
    """What the folder keeps of a run."""

    spec: dict[str, Any]
    cell: Cell


def finished_cell(spec: Spec, folder: Path) -> Cell | None:
    """The run's numbers, if they are in the folder; None also for a run that failed, which is run again."""
    try:
        file = _File.model_validate_json((folder / spec.file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = file.spec == json.loads(json.dumps(spec.file_fields))
    return file.cell if same and file.cell.error is None else None


def read_cells(folder: Path) -> list[Cell]:
    """Every run that is in the folder, failed ones too, in the order of its files' names."""
    files = (file for file in sorted(folder.glob("*.json")) if not file.name.startswith("before-"))
    return [_File.model_validate_json(file.read_text(encoding="utf-8")).cell for file in files]


def write_cell(spec: Spec, cell: Cell, folder: Path) -> None:
    """The run's file, in one step."""
    content = json.dumps({"spec": spec.file_fields, "cell": plain_fields(cell)})
    replace_file(folder / spec.file, content.encode())


def common_fields(spec: Spec) -> dict[str, Any]:
    """What the spec gives to every cell."""
    names = ("task", "tier", "seed", "steps", "rate", "n_eval", "samples")
    return {"method": spec.name} | {name: getattr(spec, name) for name in names}


def failed_cell(spec: Spec, error: str) -> Cell:
    """The run without numbers."""
    return Cell(**common_fields(spec), error=error)
