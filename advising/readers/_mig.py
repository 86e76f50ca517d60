"""Instances of MIG by their names, as Slurm, Kubernetes and drivers write them: ``1g.10gb``.

An instance is a part of a GPU by its compute slices, and its jobs share the GPU already. Readers
give them as parts, so the advice leaves them out.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAME: Final = re.compile(
    r"^(?P<model>.*?)[_.:-]*(?:\d+c\.)?(?P<slices>[1-7])g\.(?P<gib>\d{1,3})gb(?![a-z0-9])"
)
_SLICES: Final = 7
_A30: Final = (4, 6)
"""Slices of a GPU that has other ones, and GiB of a slice by which it is known."""


class MigInstance(NamedTuple):
    """What the name of an instance says.

    Attributes
    ----------
    model : str
        What precedes the profile; an empty text if nothing does.
    fraction : float
        The part of the GPU, by compute slices.
    memory_mib : float
        The memory of the instance.
    """

    model: str
    fraction: float
    memory_mib: float


def mig_instance(name: str) -> MigInstance | None:
    """Return what a name like ``a100_1g.10gb`` says in lower case; None for a whole GPU."""
    found = _NAME.match(name.lower())
    if found is None:
        return None
    slices, gib = int(found["slices"]), int(found["gib"])
    fraction = slices / (_A30[0] if gib == slices * _A30[1] else _SLICES)
    return MigInstance(name[: found.end("model")], min(1.0, fraction), 1024.0 * gib)
