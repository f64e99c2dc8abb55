"""Files that are put in place at once."""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_PREFIX, _SUFFIX = ".gear-", ".tmp"
_LEFT_OVER_SECONDS = 3600
"""From then on a temporary file was left by a process that was killed: nobody writes for so long."""


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place at once (``replacing``): whoever reads it sees the old content or the new.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder) / "new" / "a.txt", b"whole")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'whole'
    """
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Generator[BinaryIO, None, None]:
    """A file that takes the place of ``path`` when all went well, and leaves nothing when not.

    The folder is made. Behind a link the file is replaced, not the link; an old file's permissions stay, a new
    one gets what the umask says. A terminal, a pipe and ``/dev/null`` are written into, never replaced;
    ``OSError`` for a folder and for any other device.

    >>> with replacing(Path(os.devnull)) as file:
    ...     file.write(b"1234")
    4
    """
    found = path.stat() if path.exists() else None
    if found is not None and not stat.S_ISREG(found.st_mode):
        if not (stat.S_ISCHR(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            kind = "a folder" if path.is_dir() else "a device"
            raise OSError(f"{path} is {kind}; name a file")
        with open(path, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    temporary = target.parent / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if found is not None:
                os.chmod(temporary, stat.S_IMODE(found.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def check_output(out: Path, inputs: Iterable[Path], option: str) -> None:
    """Raise ``ValueError`` if a file to write is one of those that are read, by whatever name.

    A file in a folder that is read counts too: the next reader would take it for more of the same.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "a").touch()
    ...     check_output(Path(folder) / "b", [Path(folder) / "a"], "--out")
    ...     check_output(Path(folder) / "." / "a", [Path(folder) / "a"], "--out")
    Traceback (most recent call last):
    ValueError: --out: ...a is read here too; name another file
    """
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise ValueError(f"{option}: {out} is read here too; name another file")
        if path.is_dir() and path.resolve() in out.resolve().parents:
            raise ValueError(f"{option}: {out} is in {path}, which is read here too; name another file")


def _sweep(folder: Path) -> None:
    """Remove what earlier processes left here when they were killed."""
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another process may be sweeping too
            if time.time() - left.stat().st_mtime > _LEFT_OVER_SECONDS:
                left.unlink()
