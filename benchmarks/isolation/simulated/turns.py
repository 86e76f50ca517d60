"""Time slicing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import Device, GpuClient, Grid


class Turns:
    """Time slicing: one client at a time has the GPU, and keeps it for a turn while it has work."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.clients: list[GpuClient] = []
        self._ready: dict[GpuClient, Grid] = {}
        self._owner: GpuClient | None = None
        self._since_s = 0.0
        self._running = self._changing = False

    def ready(self, grid: Grid) -> None:
        """Note a kernel that may begin when it is its client's turn."""
        self._ready[grid.client] = grid
        self._go_on()

    def over(self) -> None:
        """Note that the kernel of the client whose turn it is has ended."""
        self._running = False
        # After what the end of the kernel leads to.
        self._gpu.at(self._gpu.now_s, self._go_on)

    def _go_on(self) -> None:
        if self._running or self._changing:
            return
        gpu, owner = self._gpu, self._owner
        others = [client for client in self._ready if client is not owner]
        over = gpu.now_s - self._since_s >= gpu.costs.quantum_s
        if owner is not None and (not others or (owner.has_work and not over)):
            grid = self._ready.pop(owner, None)
            if grid is not None:
                self._running = True
                gpu.put(grid)
        elif others:
            place = self.clients.index(owner) if owner is not None else -1
            order = [*self.clients[place + 1 :], *self.clients[: place + 1]]
            self._changing = True
            after = next(client for client in order if client in others)
            gpu.at(gpu.now_s + gpu.costs.switch_s, self._change, after)

    def _change(self, owner: GpuClient) -> None:
        self._owner, self._since_s = owner, self._gpu.now_s
        self._changing = False
        self._go_on()
