"""Checkpoints that are whole before they count: a manifest, written last, vouches for every file.

Half-written, cut, flipped and missing files are all found by it. Knows no trainer.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from gear_rl.files import replace_file
from gear_rl.versions import versions

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
"""Beside the checkpoints: where one is written before it is moved into place, and moved to be deleted."""
_NAME = re.compile(r"checkpoint-(\d+)")


class BrokenCheckpointError(ValueError):
    """Why a folder is no whole checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What vouches for a checkpoint: whose it is, of which step, and every file's size and SHA-256.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "weights").write_bytes(b"abc")
    ...     seal(Path(folder), Manifest(run="r", step=2, configuration={"seed": 1}))
    ...     checked(Path(folder)).files["weights"][0]
    ...     _ = (Path(folder) / "weights").write_bytes(b"abd")
    ...     checked(Path(folder))
    Traceback (most recent call last):
    gear_rl.engines.checkpoints.BrokenCheckpointError: weights is not what was written: its SHA-256 differs
    """

    run: str
    """The same for a run that was resumed."""
    step: int
    configuration: dict[str, Any]
    """Every setting that a resumed run must share, as JSON has it."""
    resumable: bool = True
    """False where only the model was saved."""
    versions: dict[str, str] = field(default_factory=versions)
    files: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Size in bytes and SHA-256 by path inside the folder; filled in by ``seal``."""


def seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of what lies in the folder, after all of it has reached the disk."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / MANIFEST
    )
    body = asdict(replace(manifest, files=_hashed(folder, names, sync=True)))
    body["sha256"] = _own_hash(body)
    replace_file(folder / MANIFEST, (json.dumps(body, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest:
    """The folder's manifest, without a look at the files; ``BrokenCheckpointError`` if it does not hold."""
    try:
        body: Any = json.loads((folder / MANIFEST).read_bytes())
    except OSError:
        raise BrokenCheckpointError(f"it has no {MANIFEST}, so it was never finished") from None
    except ValueError:
        raise BrokenCheckpointError(f"its {MANIFEST} is not JSON") from None
    if not isinstance(body, dict) or cast(dict[str, Any], body).pop("sha256", None) != _own_hash(body):
        raise BrokenCheckpointError(f"its {MANIFEST} is not what was written")
    values = cast(dict[str, Any], body)
    files = {name: (size, digest) for name, (size, digest) in values.pop("files").items()}
    values.pop("format", None)  # of a version that numbered its manifests
    return Manifest(files=files, **values)


def checked(folder: Path) -> Manifest:
    """The manifest of a whole checkpoint; ``BrokenCheckpointError`` with the first thing that is wrong.

    Every file is read once. Files that the manifest does not list are not looked at.
    """
    manifest = read_manifest(folder)
    if not manifest.resumable:
        raise BrokenCheckpointError(
            "it was saved with save_only_model, so the optimizer's state is not in it"
        )
    for name, (size, _) in manifest.files.items():  # what costs nothing first
        if not (folder / name).is_file():
            raise BrokenCheckpointError(f"{name} is missing")
        if (found := (folder / name).stat().st_size) != size:
            raise BrokenCheckpointError(f"{name} has {found} bytes instead of {size}")
    for name, facts in _hashed(folder, list(manifest.files)).items():
        if facts != manifest.files[name]:
            raise BrokenCheckpointError(f"{name} is not what was written: its SHA-256 differs")
    return manifest


def checkpoints_in(folder: Path) -> list[Path]:
    """Everything that is named like a checkpoint, the latest step first."""
    named = [(_NAME.fullmatch(path.name), path) for path in folder.glob("checkpoint-*") if path.is_dir()]
    steps = [(int(match[1]), path) for match, path in named if match is not None]
    return [path for _, path in sorted(steps, reverse=True)]


def newest_whole(folder: Path, run: str | None) -> tuple[Path, Manifest]:
    """The newest checkpoint of ``run`` (None: of any) that holds, and its manifest; the log names the others.

    ``ValueError`` if there is none; it names what is there and why it does not count.
    """
    passed: list[str] = []
    for path in checkpoints_in(folder):
        try:
            if run is not None and read_manifest(path).run != run:
                raise BrokenCheckpointError("it is of another run")
            manifest = checked(path)
        except BrokenCheckpointError as broken:
            passed.append(f"{path.name}: {broken}")
            logger.warning("resume_from_checkpoint: %s is passed over: %s", path, broken)
        else:
            return path, manifest
    why = f" ({'; '.join(passed)})" if passed else ""
    raise ValueError(f"resume_from_checkpoint: {folder} holds no whole checkpoint of this run{why}")


def move_into_place(unfinished: Path, final: Path) -> None:
    """Make a sealed checkpoint count, at once; one of the same step that was there before is deleted."""
    if final.exists():
        final.rename(unfinished.parent / f"former-{final.name}")
    unfinished.rename(final)
    _sync_folder(final.parent)
    shutil.rmtree(unfinished.parent)


def rotate(folder: Path, run: str, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints of ``run`` beyond ``keep``, but never the newest nor the ``best``."""
    if not keep or keep < 1:
        return
    own = [path for path in checkpoints_in(folder) if _is_of(path, run)]
    protected = {path for path in own[1:] if best is not None and path.resolve() == Path(best).resolve()}
    old = [path for path in own[1:] if path not in protected]
    for path in old[max(0, keep - 1 - len(protected)) :]:
        # Moved first: a kill in the middle of the deletion leaves nothing that looks like a checkpoint.
        (folder / UNFINISHED).mkdir(exist_ok=True)
        path.rename(folder / UNFINISHED / path.name)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def _is_of(path: Path, run: str) -> bool:
    try:
        return read_manifest(path).run == run
    except BrokenCheckpointError:
        return False


def _hashed(folder: Path, names: list[str], *, sync: bool = False) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file; with ``sync`` all are on the disk afterwards."""

    def hashed(name: str) -> tuple[int, str]:
        with open(folder / name, "rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest

    with ThreadPoolExecutor(4) as threads:  # hashing leaves Python's lock
        return dict(zip(names, threads.map(hashed, names), strict=True))


def _own_hash(body: Any) -> str:
    """What the manifest says of itself, so that a flipped bit in it is found too."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
