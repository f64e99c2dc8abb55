"""Atomic replacement of files, and values without what does not belong into them."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file at once: a reader sees the old content or the new, also after a crash.

    Makes the folder, follows a link, keeps an old file's permissions. Writes into a terminal or a pipe instead.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder) / "new" / "a.txt", b"whole")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'whole'
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            if target.exists():
                shutil.copymode(target, temporary)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def check_output(out: Path, inputs: Iterable[Path], option: str) -> None:
    """Raise ``ValueError`` if ``out`` is one of ``inputs``, by any name, or in a folder among them."""
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise ValueError(f"{option}: {out} is read here too; name another file")
        if path.is_dir() and path.resolve() in out.resolve().parents:
            raise ValueError(f"{option}: {out} is in {path}, which is read here too; name another file")


def without_null(value: Any) -> Any:
    """A JSON value without the keys that hold null.

    >>> without_null([{"x": 1, "y": None}])
    [{'x': 1}]
    """
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return {name: without_null(inner) for name, inner in pairs if inner is not None}
    return [without_null(inner) for inner in cast(list[Any], value)] if isinstance(value, list) else value


def without_secrets(value: Any) -> Any:
    """Settings without the tokens of a hub, ``token`` and ``hub_token``, which change no result.

    >>> without_secrets({"hub_token": "hf_1", "model_init_kwargs": {"token": "hf_1", "dtype": "float32"}})
    {'model_init_kwargs': {'dtype': 'float32'}}
    """
    if not isinstance(value, Mapping):
        return value
    pairs = cast(Mapping[str, Any], value).items()
    return {name: without_secrets(inner) for name, inner in pairs if name not in ("token", "hub_token")}
