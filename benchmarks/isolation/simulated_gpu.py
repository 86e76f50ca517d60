"""A simulated GPU: SMs on which blocks of several clients run, under six ways of sharing.

Discrete events, no hardware: figures of this module are simulated. An SM holds as many blocks of a
kernel as its residency says. Blocks are dispatched in the order in which kernels became ready, or
by priority, and run to their end; blocks of different clients that run at the same time slow each
other by ``contention``. Durations of kernels are drawn from distributions (``Stream``).

*Alone*: the latency-critical client without others. *MPS*: kernels are dispatched as they come.
*MPS with priority*: blocks of the latency-critical client are dispatched first. *Rate control*:
best-effort kernels start at a limited rate, which falls as the latency-critical client is slowed
(after TGS, NSDI 2023). *Tally*: ``scheduler``; *kernels*: the same with whole kernels only. *Time
slicing* is separate (``time_sliced``), since one client has the whole GPU at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import cycle
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.isolation.scheduler import (
    BOUND_S,
    Kernel,
    KernelLaunch,
    Order,
    Preempt,
    Scheduler,
    Size,
)

Sharing = Literal["alone", "mps", "mps-priority", "rate", "kernels", "tally"]

CRITICAL: Final = "critical"

_LAUNCH_S: Final = 5e-6
"""From an order of ours to the first block."""
_GAP_S: Final = 1.5e-6
"""Between two kernels of a stream that are both queued."""
_WINDOW_S: Final = 0.05
_SLOWED: Final = 1.05


@dataclass(frozen=True)
class KernelKind:
    """A kernel of a stream.

    Attributes
    ----------
    blocks, threads : int
        Of its grid, and of a block.
    block_s : float
        Seconds of a block.
    residency : int
        How many of its blocks an SM holds.
    preemptible : bool
        Whether it has other forms than whole.
    """

    blocks: int
    threads: int
    block_s: float
    residency: int
    preemptible: bool = True

    def alone_s(self, sms: int) -> float:
        """Return the seconds that it takes on an idle GPU."""
        return math.ceil(self.blocks / (sms * self.residency)) * self.block_s


@dataclass(frozen=True)
class Stream:
    """Kernels that a client launches, one after the other.

    Attributes
    ----------
    kinds : tuple of KernelKind
        In their order; a request, or an iteration of training.
    """

    kinds: tuple[KernelKind, ...]

    @staticmethod
    def drawn(
        seed: int,
        *,
        count: int,
        median_s: float,
        sigma: float,
        block_median_s: float,
        sms: int,
        total_s: float | None = None,
    ) -> Stream:
        """Draw kernels whose durations are log-normal.

        Parameters
        ----------
        seed : int
            Of the draw.
        count : int
            Kernels of a request or an iteration.
        median_s, sigma : float
            Median of a kernel's duration alone, and the standard deviation of its logarithm.
        block_median_s : float
            Median of a block's duration; no longer than its kernel.
        sms : int
            Of the GPU.
        total_s : float, optional
            What the durations are scaled to.
        """
        rng = np.random.default_rng(seed)
        lasts = median_s * np.exp(sigma * rng.standard_normal(count))
        if total_s is not None:
            lasts *= total_s / lasts.sum()
        blocks_s = np.minimum(lasts, block_median_s * np.exp(0.5 * rng.standard_normal(count)))
        residency = rng.choice([1, 2, 4, 8], size=count)
        kinds = []
        for last, block_s, fits in zip(lasts, blocks_s, residency, strict=True):
            waves = max(1, round(last / block_s))
            kinds.append(
                KernelKind(
                    blocks=int(waves * sms * fits),
                    threads=int(2048 // fits) if fits > 1 else 1024,
                    block_s=float(last / waves),
                    residency=int(fits),
                )
            )
        return Stream(tuple(kinds))

    def alone_s(self, sms: int) -> float:
        """Return the seconds of a pass alone, gaps included."""
        return sum(kind.alone_s(sms) + _GAP_S for kind in self.kinds) + _LAUNCH_S


@dataclass(frozen=True)
class Result:
    """What was simulated.

    Attributes
    ----------
    latencies_s : (n,) float
        Of each request, from its arrival to its end.
    passes : tuple of float
        Passes that each best-effort client made, in parts of a pass.
    turnarounds_s : (m,) float
        From the arrival of a latency-critical kernel while best-effort blocks ran to their end.
    bounded : (m,) bool
        Whether all of those blocks were of kernels that have a form that keeps the bound.
    launches : int
        Launches of best-effort kernels and their parts.
    """

    latencies_s: NDArray[np.float64]
    passes: tuple[float, ...]
    turnarounds_s: NDArray[np.float64]
    bounded: NDArray[np.bool_]
    launches: int


@dataclass
class _Grid:
    """A kernel, or a part of one, on the GPU."""

    client: str
    kind: KernelKind
    left: int
    critical: bool
    number: int
    workers: int = 0
    stop: bool = False
    flying: int = 0
    begun_s: float = math.nan
    executed: int = 0
    done: Callable[[int, float], None] = lambda blocks, seconds: None


class SimulatedGpu:
    """Runs one latency-critical client and any number of best-effort ones.

    Parameters
    ----------
    sms : int
        Streaming multiprocessors.
    sharing : str
        How clients share the GPU.
    contention : float
        How much blocks are slowed while others have all other SMs.
    worker_overhead : float
        How much longer a block of a preemptible kernel takes.
    noise : float
        Standard deviation of the logarithm of a block's duration.
    bound_s : float
        Of the scheduler.
    seed : int
        Of what is drawn.
    """

    def __init__(
        self,
        sms: int = 108,
        sharing: Sharing = "tally",
        *,
        contention: float = 0.5,
        worker_overhead: float = 0.25,
        noise: float = 0.02,
        bound_s: float = BOUND_S,
        seed: int = 0,
    ) -> None:
        self._sms, self._sharing = sms, sharing
        self._contention, self._overhead, self._noise = contention, worker_overhead, noise
        self._rng = np.random.default_rng(seed)
        self._scheduler = Scheduler(sms, bound_s)
        self._bound_s = bound_s
        self._now_s, self._numbers = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free = float(sms)
        self._used: dict[str, float] = {}
        self._grids: list[_Grid] = []
        self._parts: dict[str, _Grid] = {}
        self._wanted: dict[str, deque[tuple[Kernel, KernelKind, Callable[[], None]]]] = {}
        self._giving_up_since: float | None = None
        self._giving_up_bounded = True
        self._turnarounds: list[float] = []
        self._bounded: list[bool] = []
        self._launches = 0
        self._streams: dict[str, deque[tuple[KernelKind, Callable[[], None]]]] = {}
        self._interval_s, self._allowed_s = 0.0, 0.0
        self._slowed: list[float] = []

    def run(
        self, critical: Stream, pauses_s: Sequence[float], others: Sequence[Stream], end_s: float
    ) -> Result:
        """Serve requests, beside the endless passes of the others.

        Parameters
        ----------
        critical : Stream
            The kernels of a request.
        pauses_s : sequence of float
            Seconds from the end of a request to the next one, in turn again and again.
        others : sequence of Stream
            What best-effort clients repeat; ignored where the client is alone.
        end_s : float
            When the simulation ends.
        """
        client = _Requests(self, critical, pauses_s)
        passes: list[_Passes] = []
        self._scheduler.join(CRITICAL, critical=True)
        for k, stream in enumerate(others if self._sharing != "alone" else ()):
            self._scheduler.join(f"other {k}", critical=False)
            passes.append(_Passes(self, f"other {k}", stream, end_s))
        for one in passes:
            one.begin()
        client.begin()
        while self._events and self._now_s < end_s:
            self._now_s, _, act = heappop(self._events)
            act()
        return Result(
            latencies_s=np.array(client.latencies_s),
            passes=tuple(one.made(end_s) for one in passes),
            turnarounds_s=np.array(self._turnarounds),
            bounded=np.array(self._bounded, dtype=bool),
            launches=self._launches,
        )

    # Clients call these.

    @property
    def now_s(self) -> float:
        """The simulated time."""
        return self._now_s

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Have something done at a moment."""
        self._numbers += 1
        heappush(self._events, (when_s, self._numbers, act))

    def launch(self, client: str, kind: KernelKind, name: str, ended: Callable[[], None]) -> None:
        """Run a kernel of a client; ``ended`` is called at its end."""
        critical = client == CRITICAL
        if self._sharing in ("tally", "kernels"):
            forms = kind.preemptible and self._sharing == "tally"
            kernel = Kernel(Size(name, kind.blocks, kind.threads), forms, forms)
            if critical:
                self._note_arrival()
            self._wanted.setdefault(client, deque()).append((kernel, kind, ended))
            self._carry_out(self._scheduler.submit(client, kernel))
            return
        queue = self._streams.setdefault(client, deque())
        queue.append((kind, ended))
        if len(queue) == 1:
            self._begin_next(client)

    def _begin_next(self, client: str) -> None:
        """Begin the first kernel of a client's stream; the next one follows its end."""
        queue, critical, delay_s = self._streams[client], client == CRITICAL, 0.0
        kind, ended = queue[0]
        if self._sharing == "rate" and not critical:
            delay_s = max(0.0, self._allowed_s - self._now_s)
            self._allowed_s = self._now_s + delay_s + self._interval_s
        self._launches += not critical
        began_s = self._now_s

        def done(blocks: int, seconds: float) -> None:
            if critical:
                self._note_slowdown((self._now_s - began_s) / (kind.alone_s(self._sms) + _GAP_S))
            queue.popleft()
            if queue:
                self._begin_next(client)
            ended()

        self.at(
            self._now_s + delay_s + _GAP_S,
            lambda: self._begin(_Grid(client, kind, kind.blocks, critical, 0, done=done)),
        )

    # Blocks.

    def _begin(self, grid: _Grid) -> None:
        if grid.stop:
            # It was preempted on its way.
            grid.done(0, 0.0)
            return
        self._numbers += 1
        grid.number = self._numbers
        self._grids.append(grid)
        if self._sharing != "mps":
            self._grids.sort(key=lambda one: (not one.critical, one.number))
        self._dispatch()

    def _dispatch(self) -> None:
        for grid in [*self._grids]:
            need = 1.0 / grid.kind.residency
            fits = int((self._free + 1e-9) / need)
            count = min(grid.left, fits)
            if grid.workers:
                count = min(grid.workers - grid.flying, count)
            if count > 0 and not grid.stop:
                self._fly(grid, count, need * count)
            # The hardware begins no later kernel of the same priority while blocks wait.
            if grid.left and not grid.workers and not grid.stop:
                break

    def _fly(self, grid: _Grid, count: int, taken: float) -> None:
        if math.isnan(grid.begun_s):
            grid.begun_s = self._now_s
        grid.left -= count
        grid.flying += count
        self._free -= taken
        self._used[grid.client] = self._used.get(grid.client, 0.0) + taken
        self.at(self._now_s + self._block_s(grid), lambda: self._land(grid, count, taken))

    def _block_s(self, grid: _Grid) -> float:
        others = sum(used for client, used in self._used.items() if client != grid.client)
        slowed = 1.0 + self._contention * others / self._sms
        worker = 1.0 + (self._overhead if grid.workers else 0.0)
        return (
            grid.kind.block_s
            * slowed
            * worker
            * math.exp(self._noise * self._rng.standard_normal())
        )

    def _land(self, grid: _Grid, count: int, taken: float) -> None:
        grid.executed += count
        if grid.workers and not grid.stop and grid.left:
            # Workers go on with the next blocks without giving their place up.
            again = min(count, grid.left)
            kept = taken * again / count
            grid.left -= again
            self.at(self._now_s + self._block_s(grid), lambda: self._land(grid, again, kept))
            count, taken = count - again, taken - kept
        grid.flying -= count
        self._free += taken
        self._used[grid.client] -= taken
        self._note_given_up()
        if not grid.flying and (not grid.left or grid.stop):
            self._grids.remove(grid)
            grid.done(grid.executed, self._now_s - grid.begun_s)
        self._dispatch()

    # Tally.

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Preempt):
                self.at(self._now_s + _GAP_S, partial(self._stop, order.client))
            else:
                self._start(order)

    def _stop(self, client: str) -> None:
        grid = self._parts.get(client)
        if grid is None or grid.stop:
            return
        grid.stop = True
        if not grid.flying and grid in self._grids:
            self._grids.remove(grid)
            grid.done(0, 0.0)

    def _start(self, order: KernelLaunch) -> None:
        kernel, kind, ended = self._wanted[order.client][0]
        critical = order.client == CRITICAL
        self._launches += not critical
        workers = order.form.size if order.form.kind == "workers" else 0
        grid = _Grid(order.client, kind, order.blocks, critical, 0, workers)

        def done(blocks: int, seconds: float) -> None:
            del self._parts[order.client]
            over = kernel.done + blocks >= kernel.size.blocks
            if over:
                self._wanted[order.client].popleft()
            orders = self._scheduler.ended(order.client, blocks, seconds)
            self._carry_out(orders)
            if over:
                ended()

        grid.done = done
        self._parts[order.client] = grid
        self.at(self._now_s + (_GAP_S if critical else _LAUNCH_S), lambda: self._begin(grid))

    # Observations.

    def _others_flying(self) -> list[_Grid]:
        return [grid for grid in self._grids if not grid.critical and grid.flying]

    def _note_arrival(self) -> None:
        flying = self._others_flying()
        if flying and self._giving_up_since is None:
            self._giving_up_since = self._now_s
            self._giving_up_bounded = all(self._keeps_bound(grid) for grid in flying)

    def _keeps_bound(self, grid: _Grid) -> bool:
        kernel = self._wanted[grid.client][0][0]
        form = self._scheduler.choice.chosen(kernel.size)
        return form is not None and (
            self._scheduler.choice.turnaround_s(kernel.size, form) <= self._bound_s
        )

    def _note_given_up(self) -> None:
        if self._giving_up_since is not None and not self._others_flying():
            self._turnarounds.append(self._now_s - self._giving_up_since)
            self._bounded.append(self._giving_up_bounded)
            self._giving_up_since = None

    def _note_slowdown(self, slowdown: float) -> None:
        """Adapt the rate of best-effort kernels as TGS does: less at once, more step by step."""
        self._slowed.append(slowdown)
        if len(self._slowed) >= 20:
            slowed = float(np.mean(self._slowed)) > _SLOWED
            self._interval_s = (
                min(_WINDOW_S, max(1e-4, self._interval_s * 2))
                if slowed
                else self._interval_s * 0.8
            )
            self._slowed.clear()


class _Requests:
    """The latency-critical client: one request after the other, with pauses."""

    def __init__(self, gpu: SimulatedGpu, stream: Stream, pauses_s: Sequence[float]) -> None:
        self._gpu, self._kinds, self._pauses_s = gpu, stream.kinds, cycle(pauses_s)
        self._left = 0
        self._arrived_s = 0.0
        self.latencies_s: list[float] = []

    def begin(self) -> None:
        self._gpu.at(self._gpu.now_s + next(self._pauses_s), self._arrive)

    def _arrive(self) -> None:
        self._arrived_s, self._left = self._gpu.now_s, len(self._kinds)
        for place, kind in enumerate(self._kinds):
            self._gpu.launch(CRITICAL, kind, f"critical {place}", self._ended)

    def _ended(self) -> None:
        self._left -= 1
        if not self._left:
            self.latencies_s.append(self._gpu.now_s - self._arrived_s)
            self.begin()


class _Passes:
    """A best-effort client: the same kernels again and again."""

    def __init__(self, gpu: SimulatedGpu, name: str, stream: Stream, end_s: float) -> None:
        self._gpu, self._name, self._stream, self._end_s = gpu, name, stream, end_s
        self._place = self._kernels = 0
        self._work_s = 0.0
        self._each_s = [kind.block_s * kind.blocks / kind.residency for kind in stream.kinds]

    def begin(self) -> None:
        kind = self._stream.kinds[self._place]
        self._gpu.launch(self._name, kind, f"{self._name} {self._place}", self._ended)

    def _ended(self) -> None:
        if self._gpu.now_s <= self._end_s:
            self._work_s += self._each_s[self._place]
            self._place = (self._place + 1) % len(self._stream.kinds)
            self.begin()

    def made(self, end_s: float) -> float:
        """Return the passes that were made, by the work of their kernels."""
        return self._work_s / sum(self._each_s)


def time_sliced(
    critical: Stream,
    pauses_s: Sequence[float],
    other: Stream,
    end_s: float,
    *,
    sms: int = 108,
    quantum_s: float = 2e-3,
) -> tuple[NDArray[np.float64], float]:
    """Return latencies and passes where clients have the whole GPU in turn.

    Parameters
    ----------
    critical, pauses_s, other, end_s
        As in ``SimulatedGpu.run``, with one best-effort client, which always has work.
    sms : int
        Streaming multiprocessors.
    quantum_s : float
        How long a client has the GPU while the other has work, too.
    """
    each_s, pauses = critical.alone_s(sms), cycle(pauses_s)
    now_s = served_s = 0.0
    latencies: list[float] = []
    while now_s < end_s:
        arrived_s = now_s + next(pauses)
        # The other's turn ends with its quantum, not with an arrival.
        now_s += math.ceil((arrived_s - now_s) / quantum_s) * quantum_s
        turns = math.ceil(each_s / quantum_s)
        now_s += each_s + (turns - 1) * quantum_s
        served_s += each_s
        latencies.append(now_s - arrived_s)
    return np.array(latencies), (now_s - served_s) / other.alone_s(sms)
