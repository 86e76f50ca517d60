"""Extracts PTX from the images that programs pass to the CUDA driver.

An image is PTX, or a *fatbin*: a container with an entry for each architecture, machine code or
PTX, the latter often compressed. The layout is undocumented; it was derived from the output of
``fatbinary`` of CUDA 13.0 without compression, with LZ4 and with Zstandard.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dovetail.instances.errors import DovetailError

_MAGIC: Final = 0xBA55ED50
_HEADER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQIIIIQQQQ")
_PTX: Final = 1
_LZ4, _ZSTANDARD = 0x2000, 0x8000
_VERSION: Final = re.compile(rb"^\s*\.version\s", re.MULTILINE)


class ImageError(DovetailError):
    """An image has no PTX that can be read."""


@dataclass(frozen=True)
class _Entry:
    architecture: int
    flags: int
    size: int
    payload: bytes


def ptx_of(image: bytes, architecture: int, kept: Path | None = None) -> str:
    """Return the PTX that the driver would compile for a GPU.

    Parameters
    ----------
    image : bytes
        PTX, a fatbin, or machine code.
    architecture : int
        The GPU's architecture, such as 90.
    kept : Path, optional
        A folder with the PTX of machine code, named by the SHA-256 of the machine code.

    Raises
    ------
    ImageError
        When there is no PTX, none for this architecture, or its compression is unknown.
    """
    if image[:4] != struct.pack("<I", _MAGIC):
        if _VERSION.search(image):
            return _text(image)
        found = kept / f"{hashlib.sha256(image).hexdigest()}.ptx" if kept else None
        if found is None or not found.exists():
            raise ImageError("machine code without PTX")
        return _text(found.read_bytes())
    fitting = [one for one in _entries(image) if one.architecture <= architecture]
    if not fitting:
        raise ImageError("machine code without PTX for this GPU")
    newest = max(fitting, key=lambda one: one.architecture)
    return _text(_unpacked(newest))


def _entries(image: bytes) -> Iterator[_Entry]:
    """Yield the entries with PTX."""
    at = _HEADER.unpack_from(image)[2]
    while at + _ENTRY.size <= len(image):
        kind, _, header, padded, packed, _, _, architecture, _, flags, _, size = _ENTRY.unpack_from(
            image, at
        )
        payload = image[at + header : at + header + (packed or padded)]
        if kind == _PTX:
            yield _Entry(architecture, flags, size, payload)
        at += header + padded


def _unpacked(entry: _Entry) -> bytes:
    if entry.flags & _LZ4:
        name, options = "lz4.block", {"uncompressed_size": entry.size}
    elif entry.flags & _ZSTANDARD:
        name, options = "zstandard", {"max_output_size": entry.size}
    else:
        return entry.payload
    try:
        unpacked: bytes = importlib.import_module(name).decompress(entry.payload, **options)
    except ImportError:
        library = name.partition(".")[0]
        raise ImageError(
            f"compressed PTX, and no {library}: it comes with the extra isolation"
        ) from None
    except Exception as error:  # each library raises its own errors
        raise ImageError(f"compressed PTX that cannot be read: {error}") from None
    return unpacked


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
