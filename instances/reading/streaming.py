"""Large instances in JSON: the list of slowdowns becomes columns while the text is read.

The text is never whole in memory. Only what is usual is read so: anything else, and whatever breaks
a rule, is left to `parse_json` and the records, which say what is wrong and where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from pydantic import ValidationError
from pydantic_core import from_json

from dovetail.instances.errors import InputError
from dovetail.instances.reading.contents import MOST_BYTES, MOST_MARKS, parse_json
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.gathering import Gathering

_CHUNK_BYTES: Final = 2**19
_START: Final = re.compile(rb'"slowdowns"\s*:\s*(?=\[\s*\{)')
_LONGEST_START: Final = 200
_LONGEST_ITEM: Final = 2**20
_END: Final = re.compile(rb"\}\s*\]")
_IN_PLACE: Final = "the list of slowdowns"


class _OddTextError(Exception):
    """The text is to be read as a whole."""


def read_streamed(file: BinaryIO) -> object | None:
    """Return the data of a JSON text with a long list of slowdowns, which are columns.

    Parameters
    ----------
    file : binary file
        The text, from its beginning.

    Returns
    -------
    object or None
        None if the text has no such list, is unusual, or has faults.
    """
    try:
        return _read(file)
    except (_OddTextError, ValidationError, ValueError, InputError):
        return None


def _read(file: BinaryIO) -> object:
    chunks = _chunks(file)
    head, first = _before_list(chunks)
    gathering, tail = Gathering(), b""
    for items, after in _items(first, chunks):
        _add(gathering, items)
        tail = after
    tail += b"".join(chunks)
    text = b"".join([head, json.dumps(_IN_PLACE).encode(), tail]).decode("utf-8-sig")
    data = parse_json(text)
    if not isinstance(data, dict) or data.get("slowdowns") != _IN_PLACE:
        raise _OddTextError
    return {**data, "slowdowns": Slowdowns(**gathering.gathered())}


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    size = marks = 0
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        marks += sum(map(chunk.count, (b",", b":", b"[", b"{")))
        if size > MOST_BYTES or marks > MOST_MARKS:
            raise _OddTextError
        yield chunk


def _before_list(chunks: Iterator[bytes]) -> tuple[bytes, bytes]:
    """Return the text before the list of slowdowns, and what was read of the list."""
    head, seen = bytearray(), 0
    for chunk in chunks:
        head += chunk
        if found := _START.search(head, seen):
            end = found.end()
            return bytes(head[:end]), bytes(head[end:]).partition(b"[")[2]
        seen = max(0, len(head) - _LONGEST_START)
    raise _OddTextError


def _items(left: bytes, chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield whole items of the list as they are read, with what comes after them."""
    while True:
        if found := _END.search(left):
            yield left[: found.start() + 1], left[found.end() :]
            return
        end = left.rfind(b"},") + 1
        if end:
            yield left[:end], b""
            left = left[end + 1 :]
        more = next(chunks, None)
        if more is None or len(left) > _LONGEST_ITEM:
            raise _OddTextError
        left += more


def _add(gathering: Gathering, items: bytes) -> None:
    """Add items, which are a JSON list but for the brackets."""
    text = b"[%b]" % items
    found = from_json(text)
    if set(map(type, found)) != {dict}:
        raise _OddTextError
    # As many colons as keys: none is given twice.
    if items.count(b":") != sum(map(len, found)):
        found = json.loads(text, object_pairs_hook=_each_once)
    first = gathering.count
    for k in gathering.add(found):
        gathering.put([k], [SlowdownEntry.model_validate(found[k - first])])


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _OddTextError
    return found
