"""Named texts and arrays in one file: a zip that holds data only and is never trusted.

Arrays are ``.npy`` files, version 1.0, of the kinds in ``KINDS``. Their headers are matched
against the one shape that numpy writes for these; nothing is evaluated or unpickled, no name in
the file becomes a path, and no more than the allowed size is unpacked.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError
from dovetail.instances.reading.contents import MOST_BYTES

KINDS: Final = {
    "|b1": np.bool_,
    "|u1": np.uint8,
    "<i8": np.int64,
    "<f4": np.float32,
    "<f8": np.float64,
}
"""The types that arrays may have, by their name in ``.npy`` files; uint8 is for texts."""

_NAMES = "bool, uint8, int64, float32 or float64"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_MOST_ENTRIES = 10_000
_MOST_DIRECTORY_BYTES = 4 * 2**20
_BEGINS = b"PK\x03\x04"
_ENDS = struct.Struct("<4s4H2LH")
_ENDS_SIGN = b"PK\x05\x06"
_SIGN_64 = b"PK\x06\x07"
_SIGN_64_BEFORE_END = 20
_DAMAGED = "is damaged or cut short"
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)"
    rb"(?P<text>\{'descr': '(?P<kind>[^'\n]{1,9})', 'fortran_order': False, "
    rb"'shape': \((?P<shape>(?:[0-9]{1,9}, ?)*(?:[0-9]{1,9})?)\), \} *\n)",
    re.DOTALL,
)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
)


def packed(entries: Mapping[str, str | NDArray[np.generic]]) -> bytes:
    """Return the bytes of a file with these entries: the same for the same entries.

    Raises
    ------
    InputError
        When an array has a type that is not in ``KINDS``.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            data = content.encode() if isinstance(content, str) else _npy(name, content)
            archive.writestr(entry, data)
    return buffer.getvalue()


def unpacked(raw: bytes) -> dict[str, bytes]:
    """Return the entries of such a file by name.

    Raises
    ------
    InputError
        When it is no such file, is damaged, or would unpack to more than `MOST_BYTES`.
    """
    _check_directory(raw)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            return {entry.filename: archive.read(entry) for entry in entries}
    except _BROKEN:
        raise InputError(_DAMAGED) from None


def array(name: str, data: bytes) -> NDArray[Any]:
    """Return the array of a ``.npy`` entry.

    Raises
    ------
    InputError
        When it is not such an array, or its length is not the one in its header.
    """
    header = _HEADER.match(data)
    if header is None or int.from_bytes(header["length"], "little") != len(header["text"]):
        raise InputError("must be an array in npy format 1.0", name)
    kind = KINDS.get(header["kind"].decode("latin-1"))
    if kind is None:
        raise InputError(f"must hold {_NAMES}, got {shown(header['kind'].decode('latin-1'))}", name)
    shape = tuple(int(size) for size in header["shape"].replace(b",", b" ").split())
    size = np.dtype(kind).itemsize * math.prod(shape)
    if len(data) - header.end() != size:
        rule = f"must have {size} bytes of shape {shape}, got {len(data) - header.end()}"
        raise InputError(rule, name)
    if len(shape) > 4:
        raise InputError(f"must have at most 4 dimensions, got {len(shape)}", name)
    if kind is np.bool_ and data[header.end() :].strip(b"\x00\x01"):
        raise InputError("must hold true and false only", name)
    # A copy: in this machine's byte order, and independent of the file's bytes.
    values = np.frombuffer(data, header["kind"].decode(), offset=header.end())
    return values.reshape(shape).astype(kind)


def _npy(name: str, values: NDArray[np.generic]) -> bytes:
    kind = values.dtype.newbyteorder("<").str
    if kind not in KINDS:
        raise InputError(f"must hold {_NAMES}, got {values.dtype}", name)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array(values, kind, order="C"), (1, 0), False)
    return buffer.getvalue()


def _check_directory(raw: bytes) -> None:
    """Refuse files that are not zip archives, and directories that would take long to read."""
    if not raw.startswith(_BEGINS):
        raise InputError("is not a model file")
    ends = len(raw) - _ENDS.size
    if ends < 0 or raw[ends : ends + 4] != _ENDS_SIGN:
        raise InputError(_DAMAGED)
    _, _, _, _, count, size, _, comment = _ENDS.unpack(raw[ends:])
    large = raw[ends - _SIGN_64_BEFORE_END :].startswith(_SIGN_64)
    if large or comment or count > _MOST_ENTRIES or size > _MOST_DIRECTORY_BYTES:
        raise InputError(f"must have at most {_MOST_ENTRIES} parts and no more around them")


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    total = sum(entry.file_size for entry in entries)
    if total > MOST_BYTES:
        raise InputError(f"must hold at most {MOST_BYTES // 2**20} MiB, got {total // 2**20} MiB")
    if len({entry.filename for entry in entries}) < len(entries):
        raise InputError("must have every part once")
    for entry in entries:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError("must be packed with deflate, got another way")
