"""Files that are written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file that takes its place once all is written: a temporary one beside it, then a rename.

    A device or a pipe is written to directly. Raises OSError with the name of ``path``.
    """
    path = Path(path)
    if _is_special(path):
        with path.open("wb") as out:
            yield out
        return
    path = Path(os.path.realpath(path))
    handle, temporary = _beside(path)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk
        raise


def write_whole(path: str | os.PathLike, text: str) -> None:
    """A text in UTF-8, by ``whole_file``."""
    with whole_file(path) as out:
        out.write(text.encode())


def check_writable(path: str | os.PathLike) -> None:
    """Raises OSError where ``whole_file`` cannot write, before work is done for it."""
    path = Path(path)
    if _is_special(path):
        path.open("ab").close()
    else:
        handle, temporary = _beside(Path(os.path.realpath(path)))
        os.close(handle)
        os.unlink(temporary)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _beside(path: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
