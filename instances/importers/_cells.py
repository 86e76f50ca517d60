"""The cells of a table with commas, by columns: the different texts, and which is where."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.reading.parquet import parquet_columns

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.float64]
Words = NDArray[np.uint64]

_ROWS_AT_ONCE: Final = 8192
_BYTES_AT_ONCE: Final = 2**22
_MOST_WORDS: Final = 32
"""How many words of eight bytes the cells of a column may have to be compared as numbers."""

_LETTERS: Final = ((1, "a"), (2, "b"))
_SECOND_NAMES: Final = {
    **{"job_a": "workload_1", "job_b": "workload_2", "device": "gpu_model"},
    **{f"{name}_{end}": f"{name}_{k}" for name in ("share", "slowdown") for k, end in _LETTERS},
}


class OddTableError(Exception):
    """The table is to be read row by row."""


class OddBytesError(Exception):
    """The bytes are to be split by the csv module, as for example texts are quoted."""


class Cells(NamedTuple):
    """Cells of a column.

    Attributes
    ----------
    texts : list of str
        The different texts in order of first appearance.
    code : (n,) int
        The position of each cell's text.
    """

    texts: list[str]
    code: IntArray


def both(cells: Mapping[str, Cells], names: tuple[str, str]) -> Cells:
    """Return the cells of two columns row by row."""
    one, other = cells[names[0]], cells[names[1]]
    number = {text: k for k, text in enumerate(one.texts)}
    for text in other.texts:
        number.setdefault(text, len(number))
    places = np.array([number[text] for text in other.texts], dtype=np.int64)
    code = np.column_stack([one.code, places[other.code]]).ravel()
    texts = [*number]
    firsts, ordered = _in_order(_first_alike(code))
    return Cells([texts[code[k]] for k in firsts], ordered)


def byte_parts(file: BinaryIO) -> Iterator[dict[str, Cells]]:
    """Yield the columns of a table without quotes, some rows at a time."""
    header: list[str] = []
    rest = b""
    while block := file.read(_BYTES_AT_ONCE):
        data = rest + block
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if len(rest) > _BYTES_AT_ONCE:
            raise OddBytesError
        yield from _whole_lines(header, data[:cut])
    if rest:
        yield from _whole_lines(header, rest + b"\n")


def _whole_lines(header: list[str], data: bytes) -> Iterator[dict[str, Cells]]:
    data = data.replace(b"\r\n", b"\n")
    if any(odd in data for odd in (b'"', b"\r", b"\0")):
        raise OddBytesError
    if data and not header:
        line, _, data = data.partition(b"\n")
        header += _header(line.decode("utf-8-sig").split(","))
    if data:
        yield _split(header, data)


def _split(header: list[str], data: bytes) -> dict[str, Cells]:
    padded = np.frombuffer(data + bytes(8), dtype=np.uint8)
    ends = np.flatnonzero((padded == ord(",")) | (padded == ord("\n")))
    if len(ends) % len(header):
        raise OddTableError
    starts = np.concatenate([[0], ends[:-1] + 1]).reshape(-1, len(header))
    stops = ends.reshape(-1, len(header))
    of_lines = padded[stops] == ord("\n")
    if not of_lines[:, -1].all() or of_lines[:, :-1].any():
        raise OddTableError
    words: Words = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))
    return {
        name: _distinct(data, words, starts[:, k], stops[:, k]) for k, name in enumerate(header)
    }


def _distinct(data: bytes, words: Words, starts: IntArray, ends: IntArray) -> Cells:
    """Return cells that are compared as numbers of eight bytes each."""
    sizes = ends - starts
    alike: IntArray | None = None
    for at in range(0, max(1, int(sizes.max())), 8):
        if at >= 8 * _MOST_WORDS:
            raise OddBytesError
        word = words[np.minimum(starts + at, len(data))]
        word &= _MASKS[np.clip(sizes - at, 0, 8)]
        same = _first_alike(word)
        alike = same if alike is None else _first_alike((alike << 32) + same)
    assert alike is not None
    firsts, code = _in_order(alike)
    return Cells([data[starts[k] : ends[k]].decode() for k in firsts], code)


def _first_alike(values: IntArray) -> IntArray:
    """Return the first row with the same number as each row; there is no need to sort them."""
    keys = values.astype(np.uint64)
    first = np.empty(len(keys), dtype=np.int64)
    slots = np.empty(2**_SLOT_BITS, dtype=np.int64)
    left, factor = np.arange(len(keys)), _FACTOR
    while len(left):
        slot = ((keys * np.uint64(factor)) >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
        # Of several rows for one slot, the last that is put there stays.
        slots[slot[::-1]] = left[::-1]
        found = slots[slot]
        first[left] = found
        other = values[found] != values[left]
        left, keys = left[other], keys[other]
        factor = factor * _FACTOR % 2**64
    return first


def _in_order(alike: IntArray) -> tuple[list[int], IntArray]:
    """Return the rows that are the first of their kind, and the number of each row's kind."""
    firsts = np.flatnonzero(alike == np.arange(len(alike)))
    rank = np.empty(len(alike), dtype=np.int64)
    rank[firsts] = np.arange(len(firsts))
    return firsts.tolist(), rank[alike]


def parquet_parts(path: Path) -> Iterator[dict[str, Cells]]:
    """Yield the columns of a Parquet file, some rows at a time."""
    for part in parquet_columns(path):
        cells = (Cells(*column) for column in part.values())
        yield dict(zip(_header([*part]), cells, strict=True))


def row_parts(file: BinaryIO) -> Iterator[dict[str, Cells]]:
    """Yield the columns of any table, some rows at a time."""
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        rows = csv.reader(text)
        header = _header(next(rows, []))
        while part := list(islice(rows, _ROWS_AT_ONCE)):
            columns = zip(*part, strict=True)
            yield {name: _encoded(cells) for name, cells in zip(header, columns, strict=True)}


def _encoded(cells: Sequence[str]) -> Cells:
    number = {text: k for k, text in enumerate(dict.fromkeys(cells))}
    return Cells([*number], np.array([number[text] for text in cells], dtype=np.int64))


def _header(cells: Sequence[str]) -> list[str]:
    names = [_SECOND_NAMES.get(name.strip(), name.strip()) for name in cells]
    if len(set(names)) < len(names):
        raise OddTableError
    return names


_SLOT_BITS: Final = 16
_FACTOR: Final = 0x9E3779B97F4A7C15
_MASKS: Final = np.array([2 ** (8 * size) - 1 for size in range(9)], dtype="<u8")
