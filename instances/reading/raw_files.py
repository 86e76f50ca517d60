"""Reading and writing bytes and texts: files, plain or ``.gz``, and ``-``.

Every mistake of a user is an `InputError`.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from dovetail.instances.errors import InputError, source_name

FilePath = str | os.PathLike[str]

LIBRARY = "library:"
"""What precedes the name of something shipped where the path of a file may stand."""


MOST_BYTES = 512 * 2**20
"""The largest accepted input, decompressed: a small ``.gz`` may hold any amount."""


_CHUNK_BYTES = 2**20


_GZIP_MAGIC = b"\x1f\x8b"


_GZIP_WBITS = 31
"""What tells zlib to write a gzip file, with the largest window."""


def read_bytes(path: FilePath) -> bytes:
    """Read the bytes of a file of at most `MOST_BYTES`, decompressed if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read or is larger.
    """
    with opened(path) as file:
        return whole(file)


@contextmanager
def opened(path: FilePath) -> Iterator[BinaryIO]:
    """Open a file at whose bytes one may look twice, decompressed if it is a gzip file.

    Raises
    ------
    InputError
        When it cannot be read, also while the caller reads it.
    """
    name = os.fspath(path)
    try:
        with _faults(), ExitStack() as stack:
            file = stack.enter_context(_seekable(name))
            packed = name.lower().endswith(".gz") or file.read(2) == _GZIP_MAGIC
            file.seek(0)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file
    except InputError as error:
        raise error if error.source else error.at(source_name(name)) from None


def read_text(path: FilePath) -> str:
    """Read the UTF-8 text of a file, like `read_bytes`.

    Raises
    ------
    InputError
        When it cannot be read, is larger or is not UTF-8.
    """
    try:
        return decoded(read_bytes(path))
    except InputError as error:
        raise error.at(source_name(path)) from None


def write_text(path: FilePath, text: str) -> None:
    """Write a text to a file, like `write_bytes`.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    try:
        data = text.encode()
    except ValueError as error:
        raise _unwritten(path, error) from None
    write_bytes(path, data)


def write_bytes(path: FilePath, data: bytes) -> None:
    """Write bytes to a file (``-``: standard output), compressed if the name ends in ``.gz``.

    A regular file is written atomically: next to its target, then moved there.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    _write(path, [data])


def write_parts(path: FilePath, parts: Iterable[str]) -> None:
    """Write the parts of a text to a file, like `write_bytes`; one is in memory at a time.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    _write(path, map(str.encode, parts))


def _write(path: FilePath, parts: Iterable[bytes]) -> None:
    name = os.fspath(path)
    try:
        _write_bytes(name, _packed(parts) if name.lower().endswith(".gz") else parts)
    except (OSError, ValueError) as error:
        raise _unwritten(path, error) from None


def _unwritten(path: FilePath, error: OSError | ValueError) -> InputError:
    source = "standard output" if os.fspath(path) == "-" else source_name(path)
    return InputError(f"cannot be written: {_reason(error)}", source=source)


def decoded(data: bytes) -> str:
    """Return the text of bytes in UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"must be UTF-8 text, got another byte at {error.start}") from None


@contextmanager
def _faults() -> Iterator[None]:
    """Turn what may happen while a file is read into one line."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error):
        raise InputError("must be a gzip file, got something else or a damaged one") from None
    except EOFError:
        raise InputError("must be a whole gzip file, got one cut short") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {_reason(error)}") from None


def _seekable(name: str) -> BinaryIO:
    """Open a file; what can be read only once is read."""
    if name == "-":
        return io.BytesIO(whole(_binary(sys.stdin)))
    file = Path(name).open("rb")  # noqa: SIM115 (the caller closes it)
    if file.seekable():
        return file
    with file:
        return io.BytesIO(whole(file))


def _binary(stream: TextIO | None) -> BinaryIO:
    if stream is None:
        raise OSError(errno.EBADF, "it is closed")
    return stream.buffer


def whole(file: BinaryIO) -> bytes:
    """Return the content of an open file; more than `MOST_BYTES` is refused."""
    content = io.BytesIO()
    while chunk := file.read(_CHUNK_BYTES):
        content.write(chunk)
        if content.tell() > MOST_BYTES:
            raise InputError(f"must hold at most {MOST_BYTES // 2**20} MiB, got more")
    return content.getvalue()


def _packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    # No time stamp: the same content gives the same file.
    packing = zlib.compressobj(zlib.Z_BEST_COMPRESSION, wbits=_GZIP_WBITS)
    yield from map(packing.compress, parts)
    yield packing.flush()


def _write_bytes(name: str, parts: Iterable[bytes]) -> None:
    if name == "-":
        file = _binary(sys.stdout)
        # Earlier output must come first.
        sys.stdout.flush()
        file.writelines(parts)
        file.flush()
    elif os.path.exists(name) and not os.path.isfile(name):
        # A device or a pipe is written to; moving a file there would replace it.
        with Path(name).open("wb") as file:
            file.writelines(parts)
    else:
        _replace_file(Path(os.path.realpath(name)), parts)


def _replace_file(target: Path, parts: Iterable[bytes]) -> None:
    temporary = target.with_name(f".dovetail-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _reason(error: OSError | ValueError) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]
