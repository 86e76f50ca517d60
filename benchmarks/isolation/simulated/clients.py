"""The clients of the simulated GPU: requests, and passes of best-effort work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .device import Device, GpuClient, Grid
from .kernels import Stream, Work

if TYPE_CHECKING:
    from .blocking import Announcements
    from .gated import Gates


class Requests(GpuClient):
    """The latency-critical client."""

    def __init__(self, gpu: Device, stream: Stream, arrivals_s: Sequence[float]) -> None:
        super().__init__(gpu, "critical", critical=True)
        self.kinds, self.arrivals_s = stream.kinds, list(map(float, arrivals_s))
        self.library: Gates | Announcements | None = None
        self.latencies_s: list[float] = []
        self.services_s: list[float] = []
        self.kernels = 0
        """Kernels that have ended."""
        self._place = len(self.kinds)
        self._launched_s = 0.0
        self._next = 0

    @property
    def has_work(self) -> bool:
        """Whether kernels of it are in its stream."""
        return self._place < len(self.kinds)

    def start(self) -> None:
        """Begin with the first request."""
        if self._next < len(self.arrivals_s):
            self.gpu.at(self.arrivals_s[self._next], self._launch)

    def _launch(self) -> None:
        gpu = self.gpu
        self._launched_s, self._place = gpu.now_s, 0
        if self.library:
            self.library.came()
        gpu.at(gpu.now_s + gpu.launch_s(), self._begin)

    def _begin(self) -> None:
        self.gpu.begin(Grid(self, self.kinds[self._place], self._ended))

    def _ended(self, grid: Grid) -> None:
        gpu, costs = self.gpu, self.gpu.costs
        self._place += 1
        self.kernels += 1
        mark_s = costs.mark_s if self.library else 0.0
        if self._place < len(self.kinds):
            gpu.at(gpu.now_s + costs.gap_s + mark_s, self._begin)
            return
        arrived_s = self.arrivals_s[self._next]
        self.latencies_s.append(gpu.now_s - arrived_s)
        self.services_s.append(gpu.now_s - self._launched_s)
        if self.library:
            gpu.at(gpu.now_s + mark_s + gpu.seen_s(), self.library.went, len(self.latencies_s))
        self._next += 1
        if self._next < len(self.arrivals_s):
            after_s = max(self.arrivals_s[self._next], gpu.now_s + costs.turnover_s)
            gpu.at(after_s, self._launch)


class Passes(GpuClient):
    """A best-effort client whose kernels are dispatched as they come."""

    def __init__(self, gpu: Device, name: str, work: Work) -> None:
        super().__init__(gpu, name, critical=False)
        self.kinds = work.stream.kinds
        self._arrivals = iter(work.arrivals_s.tolist()) if work.arrivals_s is not None else None
        self._each_s = [kind.block_s * kind.blocks / kind.residency for kind in self.kinds]
        self._work_s = 0.0
        self._place = 0
        self._idle = False

    @property
    def has_work(self) -> bool:
        """Whether kernels of it are in its stream."""
        return not self._idle

    @property
    def passes(self) -> float:
        """Passes that were made, by the work of their kernels."""
        return self._work_s / sum(self._each_s)

    def start(self) -> None:
        """Begin with the first pass."""
        self._begin_pass()

    def _begin_pass(self) -> None:
        if self._arrivals is None:
            self.next()
            return
        arrives_s = next(self._arrivals, None)
        if arrives_s is not None and arrives_s <= self.gpu.now_s:
            self.next()
        else:
            self._idle = True
            self.idle()
            if arrives_s is not None:
                self.gpu.at(arrives_s, self._arrive)

    def _arrive(self) -> None:
        self._idle = False
        self.gpu.at(self.gpu.now_s + self.gpu.launch_s(), self.next)

    def over(self) -> None:
        """Go on after a kernel."""
        self._work_s += self._each_s[self._place]
        self._place += 1
        if self._place < len(self.kinds):
            self.next()
        else:
            self._place = 0
            self._begin_pass()

    def idle(self) -> None:
        """Note that there is no work."""

    def next(self) -> None:
        """Begin the next kernel of the stream."""
        gpu = self.gpu
        grid = Grid(self, self.kinds[self._place], self._ended)
        gpu.at(gpu.now_s + gpu.costs.gap_s, gpu.begin, grid)

    def _ended(self, grid: Grid) -> None:
        self.over()
