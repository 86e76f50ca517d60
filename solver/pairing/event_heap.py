"""A binary heap of the events of a growing tree (``blossom``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing.compilation import kernel

Ints = NDArray[np.int64]


class Events(NamedTuple):
    """A binary heap of possible next events, least time first.

    ``a`` is the outer node, or the blossom to expand; ``b`` is the index of the edge in the graph.
    """

    time: Ints
    kind: Ints
    a: Ints
    b: Ints
    size: Ints


@kernel
def new_events(room: int) -> Events:
    """Return an empty heap."""
    return Events(
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def with_room(events: Events, more: int) -> Events:
    """Return the heap with room for ``more`` additional events."""
    size = events.size[0]
    if size + more <= events.time.size:
        return events
    larger = new_events(2 * (size + more))
    for q in range(size):
        put(larger, q, events.time[q], events.kind[q], events.a[q], events.b[q])
    larger.size[0] = size
    return larger


@kernel
def put(events: Events, q: int, time: int, kind: int, a: int, b: int) -> None:
    """Write an event to a position of the heap."""
    events.time[q] = time
    events.kind[q] = kind
    events.a[q] = a
    events.b[q] = b


@kernel
def add(events: Events, time: int, kind: int, a: int, b: int) -> None:
    """Add an event; there must be room."""
    q = events.size[0]
    events.size[0] = q + 1
    while q > 0:
        p = (q - 1) >> 1
        if events.time[p] <= time:
            break
        put(events, q, events.time[p], events.kind[p], events.a[p], events.b[p])
        q = p
    put(events, q, time, kind, a, b)


@kernel
def drop(events: Events) -> None:
    """Remove the next event."""
    size = events.size[0] - 1
    events.size[0] = size
    time = events.time[size]
    q = 0
    while True:
        c = 2 * q + 1
        if c >= size:
            break
        if c + 1 < size and events.time[c + 1] < events.time[c]:
            c += 1
        if events.time[c] >= time:
            break
        put(events, q, events.time[c], events.kind[c], events.a[c], events.b[c])
        q = c
    put(events, q, time, events.kind[size], events.a[size], events.b[size])
