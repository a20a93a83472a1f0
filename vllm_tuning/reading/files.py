"""The one door for text in, and files that are written whole or not at all."""

import codecs
import contextlib
import gzip
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..units import InputError

BLOCK = 1 << 18

LARGEST = 1 << 26  # bytes of a text that is held whole

Read = Callable[[int], bytes]  # read(size) gives bytes of UTF-8, none at the end


@contextlib.contextmanager
def opened(source, expected: str, name: str | None = None) -> Iterator[Read]:
    """``read(size)`` over a path, ``-`` (stdin) or a binary stream: plain or gzip, UTF-8 or UTF-16.

    Raises InputError ``NAME: what is wrong; expected ...``, also where reading fails later on.
    """
    name = name or str(source)
    try:
        with _stream(source) as stream:
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = io.BufferedReader(gzip.GzipFile(fileobj=stream), BLOCK)
            if stream.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                stream = codecs.EncodedFile(stream, "utf-8", "utf-16", "replace")
            yield stream.read
    except IsADirectoryError:
        raise InputError(f"{name}: a directory; expected {expected}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name}: cannot be read: {reason}; expected {expected}") from None


class Head:
    """The first 64 KiB of what was read."""

    def __init__(self):
        self.data = b""

    def keep(self, data: bytes) -> bytes:
        if len(self.data) < 1 << 16:
            self.data += data[: 1 << 16]
        return data

    @property
    def text(self) -> str:
        return self.data.decode("utf-8-sig", "replace")


def read_text(source, expected: str, largest: int = LARGEST) -> str:
    """The whole text of ``opened``, of at most ``largest`` bytes. Raises InputError."""
    parts, left = [], largest
    with opened(source, expected) as read:
        while left >= 0 and (part := read(BLOCK)):
            parts.append(part)
            left -= len(part)
    if left < 0:
        raise InputError(f"{source}: larger than {largest >> 20} MiB; expected {expected}")
    try:
        text = b"".join(parts).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{source}: not a text in UTF-8 or UTF-16; expected {expected}") from None
    if "\0" in text:
        raise InputError(f"{source}: holds NUL bytes; expected {expected}")
    return text


def _stream(source):
    if not hasattr(source, "read") and os.fspath(source) != "-":
        try:
            return open(source, "rb", buffering=BLOCK)
        except ValueError as error:  # a path that no system takes
            raise OSError(str(error)) from None
    if not hasattr(source, "read") and sys.stdin is None:
        raise OSError("standard input is closed")
    return _lent(source if hasattr(source, "read") else sys.stdin.buffer)


@contextlib.contextmanager
def _lent(stream):
    """A caller's stream with a buffer, which leaves it open."""
    buffered = io.BufferedReader(stream, BLOCK)
    try:
        yield buffered
    finally:
        buffered.detach()


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file that takes its place once all is written: a temporary one beside it, then a rename.

    Raises InputError where ``path`` is no regular file, OSError with the name of ``path``.
    """
    path = _regular(path)
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
        if isinstance(error, OSError) and error.filename in (None, temporary):
            error.filename, error.filename2 = str(path), None  # a full disk, a folder's rights
        raise


def write_whole(path: str | os.PathLike, text: str) -> None:
    """A text in UTF-8, by ``whole_file``."""
    with whole_file(path) as out:
        out.write(text.encode())


def check_writable(path: str | os.PathLike) -> None:
    """Raises InputError or OSError where ``whole_file`` cannot write, before work is done."""
    handle, temporary = _beside(_regular(path))
    os.close(handle)
    os.unlink(temporary)


def _regular(path: str | os.PathLike) -> Path:
    """Where a file of that name lies or will lie: a link's target."""
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise InputError(f"{path}: a directory; expected the name of a file")
    if Path(path).exists() and (not real.is_file() or _is_output(real)):
        raise InputError(
            f"{path}: not a regular file, so it cannot be exchanged whole; name a file, "
            "or redirect what is printed with >"
        )
    return real


def _is_output(path: Path) -> bool:
    """Whether a file is what standard output or standard error go to, as /dev/stdout may be."""
    with contextlib.suppress(OSError):
        return any(os.path.samestat(path.stat(), os.fstat(output)) for output in (1, 2))
    return False


def _beside(path: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
