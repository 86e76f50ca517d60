"""What a check hands back, and how one is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dovetail.executor.live.first_contact.bench import Bench

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Seen(NamedTuple):
    """What was seen in words, whether the code takes just that for granted, and the figures."""

    told: str
    as_taken: bool
    values: Mapping[str, Any] = NOTHING


class Checking(NamedTuple):
    """A check.

    Attributes
    ----------
    id : str
        Its name on the command line.
    rows : tuple of int
        The lines of docs/hardware.md that it settles, wholly or in part.
    looked_at, taken : str
        What it looks at, and what the code takes for granted until then.
    run : callable
        Makes it.
    limit_s : float
        The longest it may take.
    usual_s : float
        What it is expected to take on hardware.
    fault : bool
        Whether it breaks clients, servers or daemons on purpose.
    """

    id: str
    rows: tuple[int, ...]
    looked_at: str
    taken: str
    run: Callable[[Bench], Seen]
    limit_s: float
    usual_s: float
    fault: bool = False
