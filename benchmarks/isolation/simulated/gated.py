"""Best-effort clients whose streams wait at a gate, and the guards of their gates."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.isolation.scheduler import WHOLE

from .clients import Passes
from .device import Device, Grid
from .gate import TOP, Groups, IdleTimes
from .kernels import KernelKind, Work
from .measures import KernelMeasures


@dataclass
class GatedLaunch:
    """A launch in a gated stream.

    ``wait`` is its class at the gate, None without a wait; ``before_s`` passes in the stream ahead
    of the wait, ``after_s`` behind it.
    """

    wait: int | None
    blocks: int | None
    keeps_bound: bool
    before_s: float = 0.0
    after_s: float = 0.0
    workers: int = 0
    chunk: int = 1
    flag: bool = False


class Gates:
    """The gates of all best-effort processes, which are moved together, and their guards."""

    def __init__(self, gpu: Device, clients: list[GatedPasses]) -> None:
        self._gpu, self._clients = gpu, clients
        self.level = TOP
        """As the GPU sees it."""
        self._looks = gpu.way != "gate"
        self._idle_times = IdleTimes()
        self._idle_since_s: float | None = None
        self._requests = 0
        self._epoch = 0

    def came(self) -> None:
        """Close for a request that is launched now."""
        gpu, costs = self._gpu, self._gpu.costs
        if self._idle_since_s is not None:
            self._idle_times.add(gpu.now_s - self._idle_since_s)
            self._idle_since_s = None
        woken_s = costs.wake_s if self.level == TOP else 0.0
        self._requests += 1
        self._epoch += 1
        gpu.turnarounds.came(gpu.now_s, [one for one in self._clients if one.active])
        gpu.at(gpu.now_s + costs.close_s, self._closed, self._epoch)
        for one in self._clients:
            gpu.at(gpu.now_s + woken_s + costs.flag_s, self._flag, one, self._epoch)

    def _closed(self, epoch: int) -> None:
        if epoch == self._epoch:
            self.level = 0

    def _flag(self, client: GatedPasses, epoch: int) -> None:
        """Have the workers of a client stop, if the gate is still closed."""
        if epoch != self._epoch or not client.active or not client.flagged:
            return
        if client.grid is not None:
            self._gpu.stop(client.grid)
        else:
            # It was reset by the launch that follows.
            again_s = self._gpu.now_s + self._gpu.costs.flag_again_s
            self._gpu.at(again_s, self._flag, client, epoch)

    def went(self, answered: int) -> None:
        """Open, as the host sees the end of a request, unless the next one has come."""
        if answered < self._requests:
            return
        self._epoch += 1
        self._gpu.turnarounds.over(active=False)
        self._idle_since_s = self._gpu.now_s
        self._open(0, self._epoch)

    def _open(self, border: int, epoch: int) -> None:
        if epoch != self._epoch:
            return
        now_s = self._gpu.now_s
        self.level = self._idle_times.level(border) if self._looks else TOP
        for one in self._clients:
            if one.parked is not None and one.parked <= self.level:
                one.parked = None
                self._gpu.at(now_s + self._gpu.costs.open_s, one.at_gate)
        if self._looks and border < TOP:
            assert self._idle_since_s is not None
            next_s = self._idle_since_s + 2.0 ** (border + 1) * 1e-6
            self._gpu.at(next_s, self._open, border + 1, epoch)

    def note(self) -> None:
        """Note that a client has nothing in flight."""
        active = any(one.active for one in self._clients)
        self._gpu.turnarounds.over(active=active)


class GatedPasses(Passes):
    """A best-effort client whose stream waits at a gate; its host runs ahead."""

    gate: Gates

    def __init__(self, gpu: Device, name: str, work: Work) -> None:
        super().__init__(gpu, name, work)
        self.parked: int | None = None
        """The class of the launch that waits at the closed gate."""
        self.active = False
        self.grid: Grid | None = None
        self.flagged = self.keeps_bound = False
        forms = {"gate-slices": ("slices",), "gate-workers": ("slices", "workers")}
        self.measures = KernelMeasures(gpu, name, self.kinds, forms=forms.get(gpu.way, ()))
        self._groups = Groups(gpu.bound_s)
        self._parts: deque[GatedLaunch] = deque()
        self._form = WHOLE
        self._executed = 0
        self._took_s = 0.0

    def idle(self) -> None:
        """Note that nothing of the client is in flight."""
        self.active = False
        self._groups.left_s = 0.0
        self.gate.note()

    def next(self) -> None:
        """Put the launches of the next kernel into the stream."""
        place, kind = self._place, self.kinds[self._place]
        self._executed, self._took_s = 0, 0.0
        self._form = self.measures.form(place) if self.measures.is_timed(place) else WHOLE
        self._parts.extend(self._planned(place, kind))
        self._to_gate()

    def _planned(self, place: int, kind: KernelKind) -> Iterator[GatedLaunch]:
        """Yield the launches of a kernel."""
        costs, form = self.gpu.costs, self._form
        whole_s, measured = self.measures.whole_s(place), not self.measures.is_timed(place)
        if form.kind == "whole":
            wait = self._groups.wait(whole_s, apart=measured)
            keeps = whole_s is not None and whole_s <= self.gpu.bound_s
            yield GatedLaunch(wait, None, keeps, after_s=costs.event_s if measured else 0.0)
            return
        turnaround_s = self.measures.turnaround_s(place, form)
        known = not math.isnan(turnaround_s)
        keeps = known and turnaround_s <= self.gpu.bound_s
        if form.kind == "slices":
            left = kind.blocks
            while left:
                blocks = min(form.size, left)
                left -= blocks
                wait = self._groups.wait(turnaround_s if known else whole_s, apart=not known)
                yield GatedLaunch(wait, blocks, keeps)
            return
        # The last launch of workers has no flag: it ends what is left.
        again_s = costs.wait_s + 2 * costs.gap_s + costs.worker_step_s
        about_s = self.measures.run_s(place, form) or whole_s or 0.0
        for _ in range(max(1, int(costs.repeats * about_s / again_s))):
            wait = self._groups.wait(turnaround_s if known else None, apart=True)
            yield GatedLaunch(
                wait,
                None,
                keeps,
                after_s=costs.gap_s,
                workers=form.size,
                chunk=form.chunk,
                flag=True,
            )
        wait = self._groups.wait(about_s or None, apart=True)
        yield GatedLaunch(wait, None, False, workers=form.size, chunk=form.chunk)

    def _to_gate(self) -> None:
        part, costs = self._parts[0], self.gpu.costs
        wait_s = costs.wait_s if part.wait is not None else 0.0
        self.gpu.at(self.gpu.now_s + costs.gap_s + wait_s, self.at_gate)

    def at_gate(self) -> None:
        """Begin the next launch if the gate lets it in, else wait there."""
        part = self._parts[0]
        if part.wait is not None and part.wait > self.gate.level:
            self.parked = part.wait
            self.active = False
            self.gate.note()
            return
        self.active, self.flagged = True, part.flag
        self.keeps_bound = part.keeps_bound
        self.gpu.turnarounds.began(keeps_bound=part.keeps_bound)
        kind = self.kinds[self._place]
        left = kind.blocks - self._executed
        grid = Grid(
            self,
            kind,
            self._ended,
            blocks=left if part.blocks is None else part.blocks,
            workers=min(part.workers, left),
            chunk=part.chunk,
        )
        self.gpu.at(self.gpu.now_s + part.after_s, self._begin, grid)

    def _begin(self, grid: Grid) -> None:
        self.grid = grid
        self.gpu.begin(grid)

    def _ended(self, grid: Grid) -> None:
        self._parts.popleft()
        self.grid = None
        self._executed += grid.executed
        if grid.executed:
            self._took_s += self.gpu.now_s - grid.begun_s
        if self._parts:
            self._to_gate()
            return
        kind, place = self.kinds[self._place], self._place
        assert self._executed == kind.blocks
        self.measures.add(place, self._form, self._took_s)
        self.over()
