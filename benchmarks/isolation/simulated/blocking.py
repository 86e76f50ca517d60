"""The library before the gate: best-effort launches wait on the host, one at a time."""

from __future__ import annotations

import math

from dovetail.isolation.scheduler import WHOLE

from .clients import Passes
from .device import Device, Grid
from .kernels import Work
from .measures import KernelMeasures


class Announcements:
    """What latency-critical processes told the others before the gate."""

    def __init__(self, gpu: Device, clients: list[BlockingPasses]) -> None:
        self._gpu, self._clients = gpu, clients
        self._requests = self._answered = 0

    @property
    def waits(self) -> bool:
        """Whether a latency-critical launch is announced."""
        return self._requests > self._answered

    def came(self) -> None:
        """Announce a request, and have all workers stop."""
        gpu = self._gpu
        self._requests += 1
        gpu.turnarounds.came(gpu.now_s, [one for one in self._clients if one.grid])
        for one in self._clients:
            if one.grid is not None and one.grid.workers:
                gpu.stop(one.grid)

    def went(self, answered: int) -> None:
        """Note the end of a request."""
        self._answered = answered
        if not self.waits:
            self._gpu.turnarounds.over(active=False)

    def note(self) -> None:
        """Note that a client has nothing in flight."""
        active = any(one.grid for one in self._clients)
        self._gpu.turnarounds.over(active=active)


class BlockingPasses(Passes):
    """A best-effort client that launches one part at a time, when its host has seen the last end.

    The host looks for a while without a pause, then between sleeps; kernels are timed by its clock.
    """

    page: Announcements

    def __init__(self, gpu: Device, name: str, work: Work) -> None:
        super().__init__(gpu, name, work)
        self.grid: Grid | None = None
        forms = ("slices", "workers") if gpu.way == "blocking-forms" else ()
        self.measures = KernelMeasures(gpu, name, self.kinds, forms=forms)
        self._form = WHOLE
        self._executed = 0
        self._took_s = self._since_s = 0.0

    @property
    def keeps_bound(self) -> bool:
        """Whether what is in flight should keep the bound."""
        return self.measures.turnaround_s(self._place, self._form) <= self.gpu.bound_s

    def next(self) -> None:
        """Wait until the next kernel may be launched."""
        self._executed, self._took_s = 0, 0.0
        self._form = self.measures.form(self._place)
        self._wait(self.gpu.now_s)

    def _wait(self, since_s: float) -> None:
        """Look whether no latency-critical launch is announced; launch then."""
        gpu, costs = self.gpu, self.gpu.costs
        if self.page.waits:
            # While it looks without a pause, it sees the end at once.
            pause_s = costs.sleep_s if gpu.now_s - since_s > costs.spin_s else costs.spin_s + 1e-9
            gpu.at(gpu.now_s + pause_s, self._wait, since_s)
            return
        self._since_s = gpu.now_s
        gpu.at(gpu.now_s + gpu.launch_s(), self._begin)

    def _begin(self) -> None:
        kind, form = self.kinds[self._place], self._form
        left = kind.blocks - self._executed
        workers = min(form.size, left) if form.kind == "workers" else 0
        blocks = min(form.size, left) if form.kind == "slices" else left
        self.grid = Grid(self, kind, self._ended, blocks=blocks, workers=workers, chunk=form.chunk)
        if workers and self.page.waits:
            self.grid.left = 0
        self.gpu.begin(self.grid)

    def _ended(self, grid: Grid) -> None:
        gpu, costs = self.gpu, self.gpu.costs
        self.grid = None
        self.page.note()
        self._executed += grid.executed
        seen_s = gpu.now_s + costs.mark_s + gpu.seen_s()
        waited_s = seen_s - self._since_s
        if waited_s > costs.spin_s:
            looks = math.ceil((waited_s - costs.spin_s) / costs.sleep_s)
            seen_s = self._since_s + costs.spin_s + looks * costs.sleep_s
        gpu.at(seen_s, self._seen)

    def _seen(self) -> None:
        kind = self.kinds[self._place]
        self._took_s += self.gpu.now_s - self._since_s
        if self._executed < kind.blocks:
            self._wait(self.gpu.now_s)
            return
        self.measures.add(self._place, self._form, self._took_s)
        self.over()
