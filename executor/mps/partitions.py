"""Static partitions of a GPU's SMs, which MPS reserves in chunks (``-S``, CUDA 13.1, Ampere).

A chunk is 8 SMs on Hopper and newer, and 4 before. What is left over goes to some partition, so
numbers of chunks and SMs are read from ``lspart``, never calculated. A client without a partition
fails, and percentages have no effect. Sources: NVIDIA, "Common Tasks", "Legacy MPS v2 Interface"
(release 615, September 2026). The table is printed there with ``-`` in empty columns; SGLang-Omni
reads one without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

PARTITION: Final = "CUDA_MPS_SM_PARTITION"
"""The variable by which a client names its partition, ``<UUID>/<id>``."""

_WHOLE: Final = 100
_EMPTY: Final = "-"


class Partition(NamedTuple):
    """A partition; its id has no meaning. ``in_use`` says whether it has clients."""

    id: str
    chunks: int
    sms: int
    in_use: bool


class PartitionTable(NamedTuple):
    """The chunks of a GPU that are free and in all, and its partitions."""

    free: int
    chunks: int
    partitions: tuple[Partition, ...]


def parsed(lines: Iterable[str], uuid: str) -> PartitionTable:
    """Return the partitions of a GPU that ``lspart`` prints.

    Raises
    ------
    ValueError
        If the lines are something else.
    """
    found, totals = [], list[tuple[int, int]]()
    for line in lines:
        name, *rest = line.split()
        if not name.startswith("GPU-") or not uuid.startswith(name):
            continue
        words = [word for word in rest if word != _EMPTY]
        if all(word.isdecimal() for word in words):
            free, used, _, _ = map(int, words)
            totals.append((free, free + used))
        else:
            ident, chunks, sms, *clients = words
            in_use = clients not in ([], ["No"])
            found.append(Partition(ident, int(chunks), int(sms), in_use))
    (total,) = totals
    return PartitionTable(*total, tuple(found))


def shares_of(chunks: int) -> Mapping[int, int]:
    """Return the number of chunks of each share that is a whole number of them, in per cent.

    Shares of two numbers of chunks sum to 100 if the numbers sum to all chunks, and to more only if
    the numbers do. The last share is the whole GPU.

    Examples
    --------
    >>> shares_of(4)
    {25: 1, 50: 2, 75: 3, 100: 4}
    >>> list(shares_of(16))
    [6, 12, 18, 25, 31, 37, 43, 50, 57, 63, 69, 75, 82, 88, 94, 100]
    """
    lower = [_WHOLE * k // chunks for k in range(1, chunks // 2 + 1)]
    upper = [_WHOLE - share for share in reversed(lower if chunks % 2 else lower[:-1])]
    return {share: k for k, share in enumerate((*lower, *upper, _WHOLE), 1)}


def wanted(chunks: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Return the shares of whole chunks that are nearest to given ones, in their order.

    Shares that sum to 100 are replaced by others that do.

    Examples
    --------
    >>> wanted(16, (50, 25, 75, 10, 90)), wanted(10, (25, 75))
    ((50, 25, 75, 12, 88), (20, 80))
    """
    lower = [share for share in shares_of(chunks) if 2 * share <= _WHOLE]

    def nearest(share: int) -> int:
        return min(lower, key=lambda own: (abs(own - share), own))

    found = (nearest(p) if 2 * p <= _WHOLE else _WHOLE - nearest(_WHOLE - p) for p in shares)
    return tuple(dict.fromkeys(found)) if lower else ()
