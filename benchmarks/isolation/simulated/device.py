"""Blocks on the SMs of the simulated GPU, in discrete events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

import numpy as np

from .costs import Costs
from .kernels import KernelKind
from .turnarounds import Turnarounds
from .turns import Turns
from .ways import Way

UNITS: Final = 3360
"""Parts of an SM: divisible by every residency."""


class Grid:
    """A kernel, or a part of one, on the GPU."""

    __slots__ = (
        "begun_s",
        "blocks",
        "chunk",
        "client",
        "ended",
        "executed",
        "flying",
        "kind",
        "left",
        "need",
        "pending",
        "stop",
        "workers",
    )

    def __init__(
        self,
        client: GpuClient,
        kind: KernelKind,
        ended: Callable[[Grid], None],
        *,
        blocks: int | None = None,
        workers: int = 0,
        chunk: int = 1,
    ) -> None:
        self.client, self.kind, self.ended = client, kind, ended
        self.blocks = self.left = kind.blocks if blocks is None else blocks
        self.workers, self.chunk = workers, chunk
        self.pending = workers or self.left
        """Blocks of the launch that were not dispatched yet."""
        self.need = UNITS // kind.residency
        self.flying = self.executed = 0
        self.stop = False
        self.begun_s = math.nan


class GpuClient:
    """A client of the GPU."""

    def __init__(self, gpu: Device, name: str, *, critical: bool) -> None:
        self.gpu, self.name, self.critical = gpu, name, critical
        self.used = 0
        self.most_used = gpu.sms * UNITS

    @property
    def has_work(self) -> bool:
        """Whether kernels of it are in its stream."""
        raise NotImplementedError


class Device:
    """The SMs, on which blocks of all clients run, and the moments at which something happens.

    Parameters
    ----------
    sms : int
        Streaming multiprocessors.
    way : str
        How clients share the GPU.
    costs : Costs
        What takes time besides blocks.
    bound_s : float
        How long what is in flight may take when a request comes.
    seed : int
        Of what is drawn.
    """

    def __init__(self, sms: int, way: Way, costs: Costs, bound_s: float, seed: int) -> None:
        self.sms, self.way, self.costs, self.bound_s = sms, way, costs, bound_s
        self.now_s = 0.0
        self.launches = 0
        self.turnarounds = Turnarounds()
        self.turns = Turns(self) if way == "time-slicing" else None
        self._rng = np.random.default_rng(seed)
        self._normals: Iterator[float] = iter(())
        self._numbers = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._free = self._all = sms * UNITS
        self._grids: list[Grid] = []
        self._running = 0
        """Best-effort blocks on SMs."""
        self._busy = 0.0
        self._first = way in ("mps-priority", "tgs")

    @property
    def busy_s(self) -> float:
        """Time of the SMs that blocks took, in seconds of the whole GPU."""
        return self._busy / self._all

    def happen(self, end_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Have everything happen until a moment, or until ``over`` says so."""
        events = self._events
        while events and events[0][0] < end_s and not over():
            self.now_s, _, act, arguments = heappop(events)
            act(*arguments)

    # Clients call these.

    def at(self, when_s: float, act: Callable[..., None], *arguments: object) -> None:
        """Have something done at a moment."""
        self._numbers += 1
        heappush(self._events, (when_s, self._numbers, act, arguments))

    def normal(self) -> float:
        """Draw from the standard normal distribution."""
        for drawn in self._normals:
            return float(drawn)
        self._normals = iter(self._rng.standard_normal(8192).tolist())
        return self.normal()

    def seen_s(self) -> float:
        """Draw how long a write of the GPU takes until the host sees it."""
        costs = self.costs
        sigma = math.log(costs.seen_99_s / costs.seen_s) / 2.3263
        return costs.seen_s * math.exp(sigma * self.normal())

    def launch_s(self) -> float:
        """Draw how long a launch into an idle stream takes."""
        least, most = self.costs.launch_s
        return least + (most - least) * (0.5 + math.atan(self.normal()) / math.pi)

    def begin(self, grid: Grid) -> None:
        """Have a kernel dispatched that is the first of its stream."""
        if not grid.client.critical:
            self.launches += 1
        if not grid.left:
            grid.begun_s = self.now_s
            grid.ended(grid)
        elif self.turns:
            self.turns.ready(grid)
        else:
            self.put(grid)

    def put(self, grid: Grid) -> None:
        """Have the blocks of a kernel dispatched."""
        if self._first and grid.client.critical:
            self._grids.insert(0, grid)
        else:
            self._grids.append(grid)
        self._dispatch()

    def stop(self, grid: Grid) -> None:
        """Have workers end after the chunk that they work on."""
        grid.stop = True
        grid.pending = 0
        if not grid.flying and grid in self._grids:
            self._end(grid)
            self._dispatch()

    # Blocks.

    def _dispatch(self) -> None:
        for grid in [*self._grids]:
            if not grid.pending:
                continue
            need, client = grid.need, grid.client
            fits = self._free // need
            capped = (client.most_used - client.used) // need
            places = min(grid.pending, fits, capped)
            if grid.workers:
                places = min(places, -(-grid.left // grid.chunk))
            if places > 0:
                grid.pending -= places
                blocks = min(grid.left, places * grid.chunk) if grid.workers else places
                if math.isnan(grid.begun_s):
                    grid.begun_s = self.now_s
                self._free -= places * need
                client.used += places * need
                grid.flying += places
                if not client.critical:
                    if not self._running:
                        self.turnarounds.runs(self.now_s)
                    self._running += places
                self._fly(grid, places, blocks)
                if grid.workers and not grid.left:
                    grid.pending = 0
            # The hardware begins no later kernel while blocks of one wait for a place.
            if grid.pending and capped >= fits:
                break

    def _fly(self, grid: Grid, places: int, blocks: int) -> None:
        """Have blocks executed in places that they have."""
        grid.left -= blocks
        costs, client = self.costs, grid.client
        seconds = grid.kind.block_s
        others = self._all - self._free - client.used
        if others > 0:
            seconds *= 1 + costs.contention * others / self._all
        if costs.noise:
            seconds *= math.exp(costs.noise * self.normal())
        if grid.workers:
            seconds *= 1 + costs.worker_slowed
            if self.way.startswith("blocking"):
                # Every worker waits for the reads of all.
                seconds = max(seconds + costs.host_read_s, grid.flying * costs.host_read_s)
            else:
                seconds = -(-blocks // places) * seconds + costs.worker_step_s
        self._busy += places * grid.need * seconds
        self.at(self.now_s + seconds, self._land, grid, places, blocks)

    def _land(self, grid: Grid, places: int, blocks: int) -> None:
        grid.executed += blocks
        if grid.workers and not grid.stop and grid.left:
            # Workers go on with the next blocks without giving their place up.
            kept = min(places, -(-grid.left // grid.chunk))
            places -= kept
            if places:
                self._release(grid, places)
            self._fly(grid, kept, min(grid.left, kept * grid.chunk))
            if not grid.left:
                grid.pending = 0
        else:
            self._release(grid, places)
        if not grid.flying and not grid.pending:
            self._end(grid)
        self._dispatch()

    def _release(self, grid: Grid, places: int) -> None:
        taken = places * grid.need
        grid.flying -= places
        self._free += taken
        grid.client.used -= taken
        if not grid.client.critical:
            self._running -= places
            if not self._running:
                self.turnarounds.rests(self.now_s)

    def _end(self, grid: Grid) -> None:
        self._grids.remove(grid)
        if self.turns:
            self.turns.over()
        grid.ended(grid)
