"""Files that are put in place at once."""

import os
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place at once (``replacing``): a reader sees the old content or the new.

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
    """A file that takes the place of ``path`` when the block ends, and is removed where it raises.

    Makes the folder, follows a link, keeps an old file's permissions. Writes into a terminal or a pipe instead.

    >>> with replacing(Path(os.devnull)) as file:
    ...     file.write(b"1234")
    4
    """
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            if target.exists():
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def check_output(out: Path, inputs: Iterable[Path], option: str) -> None:
    """Raise ``ValueError`` if the file to write is one of ``inputs``, by any name, or in a folder of them."""
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise ValueError(f"{option}: {out} is read here too; name another file")
        if path.is_dir() and path.resolve() in out.resolve().parents:
            raise ValueError(f"{option}: {out} is in {path}, which is read here too; name another file")
