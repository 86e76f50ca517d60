"""A simulated GPU: SMs on which blocks of several clients run, under many ways of sharing.

Discrete events, no hardware: figures of this module are simulated. An SM holds as many blocks of a
kernel as its residency says. Blocks run to their end; those of different clients that run at the
same time slow each other by ``contention``. Kernels are dispatched in the order in which they
became ready, as an H200 did it for clients of MPS. Durations of kernels are drawn from
distributions (``Stream``). What else takes time is in ``Costs``.

Requests of the latency-critical client arrive whether or not earlier ones were answered, and are
served one after the other. Its host puts all kernels of a request into the stream at once.

=================  ===============================================================================
way                best-effort kernels
=================  ===============================================================================
``alone``          none
``mps``            dispatched as they come
``mps-priority``   dispatched as they come, but blocks of the latency-critical client first (as
                   Tally's paper describes it; on an H200 the priority had no effect)
``mps-cap``        on at most a part of the SMs
``time-slicing``   one client at a time; a turn ends with its time and the kernel that runs then
``tgs``            at a limited rate, as in TGS (NSDI 2023); blocks of the other first
``blocking``       whole, by the library before the gate, as it was on an H200: one launch at a
                   time, which the job's own thread waits for
``blocking-forms`` the same with slices, and workers with a flag in host memory
``gate``           whole, behind the gate, without a look at when the next request is due
``gate-due``       the same with that look: what stock PyTorch gets
``gate-slices``    the same with slices: what kernels with PTX get
``gate-workers``   the same with workers, too (``--unproven``)
=================  ===============================================================================
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dovetail.isolation.scheduler import (
    BOUND_S,
    SAMPLES,
    WHOLE,
    FormChoice,
    Kernel,
    LaunchForm,
    Size,
)

sys.path.insert(0, str(Path(__file__).parent))

from simulated_gate import TOP, Groups, IdleTimes

Way = Literal[
    "alone",
    "mps",
    "mps-priority",
    "mps-cap",
    "time-slicing",
    "tgs",
    "blocking",
    "blocking-forms",
    "gate",
    "gate-due",
    "gate-slices",
    "gate-workers",
]
WAYS: Final[tuple[Way, ...]] = get_args(Way)

_UNITS: Final = 3360
"""Parts of an SM: divisible by every residency."""


@dataclass(frozen=True)
class Costs:
    """What takes time besides blocks, in seconds, and where each figure is from.

    Attributes
    ----------
    gap_s : float
        Between two kernels of a stream that are both queued. Assumed.
    launch_s : (float, float)
        From a launch by the host into an idle stream to the first block: least and most. H200.
    turnover_s : float
        Between two requests of which the second waits: the host sees the end, answers, and
        launches. Assumed.
    contention : float
        How much blocks are slowed while others have all other SMs. Assumed.
    noise : float
        Standard deviation of the logarithm of a block's duration. Assumed.
    mark_s : float
        A write of the GPU behind a kernel, in its stream. Assumed.
    seen_s, seen_99_s : float
        Until the host sees such a write: median and 99th percentile. H200.
    wait_s : float
        A wait of a stream at an open gate. Assumed.
    open_s : float
        From the opening of a gate to the first block of a kernel that waits there. Assumed.
    close_s : float
        Until a stream sees that a gate was closed. Assumed.
    event_s : float
        An event in a stream. Assumed.
    wake_s : float
        Until the guard of a process runs after it was woken. Assumed.
    flag_s : float
        From the guard to workers that read the flag in device memory. Assumed: like a launch.
    flag_again_s : float
        Between two writes of the flag. The design's.
    worker_step_s : float
        A look at the counter and the flag, for each chunk of a worker. H200: 131,072 short blocks
        took 0.21 ms instead of 0.141, with 1,056 workers.
    worker_slowed : float
        How much longer a block of a worker takes. Tally's paper, section 5.7.
    repeats : float
        The part of a kernel's time that more launches of its workers may cost. The design's.
    host_read_s : float
        A read of host memory by the GPU, one at a time. H200. Before the gate only.
    spin_s, sleep_s : float
        How long the host looked without a pause, and between two looks from then on: a sleep of 20
        us and the timer's slack of 50, measured on a CPU. Before the gate only.
    quantum_s, switch_s : float
        A turn of a client under time slicing, and the change to another one. Assumed.
    """

    gap_s: float = 1.5e-6
    launch_s: tuple[float, float] = (5e-6, 10e-6)
    turnover_s: float = 20e-6
    contention: float = 0.5
    noise: float = 0.02
    mark_s: float = 1e-6
    seen_s: float = 4.7e-6
    seen_99_s: float = 9e-6
    wait_s: float = 1e-6
    open_s: float = 3e-6
    close_s: float = 1e-6
    event_s: float = 1e-6
    wake_s: float = 5e-6
    flag_s: float = 7.5e-6
    flag_again_s: float = 10e-6
    worker_step_s: float = 0.56e-6
    worker_slowed: float = 0.25
    repeats: float = 0.05
    host_read_s: float = 1e-6
    spin_s: float = 5e-6
    sleep_s: float = 85e-6
    quantum_s: float = 2e-3
    switch_s: float = 100e-6


COSTS: Final = Costs()


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
        """Return the seconds of a pass on an idle GPU, with the gaps between kernels."""
        return sum(kind.alone_s(sms) + COSTS.gap_s for kind in self.kinds)


def poisson(seed: int, rate: float, end_s: float) -> NDArray[np.float64]:
    """Draw moments of arrival until ``end_s`` with exponential times between them."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0, end_s, rng.poisson(rate * end_s)))


def regular(seed: int, rate: float, end_s: float) -> NDArray[np.float64]:
    """Draw arrivals at equal distances, each up to a tenth of the distance too early or late."""
    count = int(rate * end_s)
    late = np.random.default_rng(seed).uniform(-0.1, 0.1, count)
    return np.asarray((np.arange(count) + 0.5 + late) / rate)


def bursts(
    seed: int, rate: float, end_s: float, *, phase_s: float = 0.1, sigma: float = 1.0
) -> NDArray[np.float64]:
    """Draw arrivals in phases whose rates are log-normal: quiet times and bursts.

    This stands for the function traces of Azure (MAF2), of which it has the manner only: it was
    drawn, not read from them.

    Parameters
    ----------
    seed : int
        Of the draw.
    rate : float
        Arrivals a second, on average.
    end_s : float
        When they end.
    phase_s : float
        Mean length of a phase; lengths are exponential.
    sigma : float
        Standard deviation of the logarithm of a phase's rate.
    """
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.exponential(phase_s, math.ceil(4 * end_s / phase_s) + 20))
    ends = np.append(ends[ends < end_s], end_s)
    lengths = np.diff(ends, prepend=0.0)
    weights = lengths * np.exp(sigma * rng.standard_normal(len(ends)))
    counts = rng.multinomial(round(rate * end_s), weights / weights.sum())
    drawn = [
        rng.uniform(end - length, end, count)
        for end, length, count in zip(ends, lengths, counts, strict=True)
    ]
    return np.sort(np.concatenate(drawn))


@dataclass(frozen=True)
class Work:
    """What a best-effort client does.

    Attributes
    ----------
    stream : Stream
        The kernels of a pass: an iteration of training, or a request.
    arrivals_s : (n,) float, optional
        When passes arrive; without it, one follows the other.
    """

    stream: Stream
    arrivals_s: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Result:
    """What was simulated.

    Attributes
    ----------
    latencies_s : (n,) float
        Of each request that was answered, from its arrival to its end.
    services_s : (n,) float
        Of each, from its first launch to its end: without the wait for earlier requests.
    passes : tuple of float
        Passes that each best-effort client made, in parts of a pass.
    turnarounds_s : (m,) float
        How long best-effort blocks still ran after each request that found any in flight: what has
        begun, and what follows without a wait.
    bounded : (m,) bool
        Whether all of those blocks were of kernels and forms that should keep the bound.
    launches : int
        Launches of best-effort kernels and their parts.
    busy_s : float
        Time of the SMs that blocks took, in seconds of the whole GPU.
    """

    latencies_s: NDArray[np.float64]
    services_s: NDArray[np.float64]
    passes: tuple[float, ...]
    turnarounds_s: NDArray[np.float64]
    bounded: NDArray[np.bool_]
    launches: int
    busy_s: float


class _Grid:
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
        client: _Client,
        kind: KernelKind,
        ended: Callable[[_Grid], None],
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
        self.need = _UNITS // kind.residency
        self.flying = self.executed = 0
        self.stop = False
        self.begun_s = math.nan


class _Client:
    """A client of the GPU."""

    def __init__(self, gpu: SimulatedGpu, name: str, *, critical: bool) -> None:
        self.gpu, self.name, self.critical = gpu, name, critical
        self.used = 0
        self.most_used = gpu.sms * _UNITS

    @property
    def has_work(self) -> bool:
        """Whether kernels of it are in its stream."""
        raise NotImplementedError


class SimulatedGpu:
    """Runs one latency-critical client and any number of best-effort ones.

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
    cap : float
        The part of the SMs that a best-effort client has in the way ``mps-cap``.
    tgs_period_s : float
        How often TGS compares rates. In its code it is 5 s, too long for the runs here.
    seed : int
        Of what is drawn.
    """

    def __init__(
        self,
        sms: int = 108,
        way: Way = "gate-slices",
        *,
        costs: Costs = COSTS,
        bound_s: float = BOUND_S,
        cap: float = 0.5,
        tgs_period_s: float = 0.25,
        seed: int = 0,
    ) -> None:
        self.sms, self.way, self.costs, self.bound_s = sms, way, costs, bound_s
        self.now_s = 0.0
        self.launches = 0
        self.turnarounds = _Turnarounds()
        self._cap, self._tgs_period_s = cap, tgs_period_s
        self._rng = np.random.default_rng(seed)
        self._normals = iter(())
        self._numbers = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._free = self._all = sms * _UNITS
        self._grids: list[_Grid] = []
        self._running = 0
        """Best-effort blocks on SMs."""
        self._busy = 0.0
        self._first = way in ("mps-priority", "tgs")
        self._turns = _Turns(self) if way == "time-slicing" else None

    def run(
        self,
        critical: Stream,
        arrivals_s: Sequence[float],
        others: Sequence[Work],
        end_s: float,
        *,
        measured: bool = True,
    ) -> Result:
        """Serve requests, beside the passes of the others.

        Parameters
        ----------
        critical : Stream
            The kernels of a request.
        arrivals_s : sequence of float
            When requests arrive.
        others : sequence of Work
            What best-effort clients do; ignored where the client is alone.
        end_s : float
            When the simulation ends.
        measured : bool
            Whether times and forms of best-effort kernels are known, from a run of the client
            alone; otherwise they are measured meanwhile.
        """
        requests = _Requests(self, critical, arrivals_s)
        made = [
            self._other(f"other {k}", work)
            for k, work in enumerate(others if self.way != "alone" else ())
        ]
        if self.way.startswith("gate"):
            gate = _Gate(self, [one for one in made if isinstance(one, _Gated)])
            requests.library = gate
            for one in made:
                if isinstance(one, _Gated):
                    one.gate = gate
        elif self.way.startswith("blocking"):
            requests.library = _Page(self, [one for one in made if isinstance(one, _Blocking)])
            for one in made:
                if isinstance(one, _Blocking):
                    one.page = requests.library
        elif self.way == "tgs":
            limited = [one for one in made if isinstance(one, _Limited)]
            _Tgs(self, requests, limited, self._tgs_period_s)
        if self._turns:
            self._turns.clients = [requests, *made]
        for client, work in zip(made, others, strict=False):
            if measured and isinstance(client, (_Gated, _Blocking)):
                client.measures = self._measured(client.name, work.stream)
        for client in made:
            client.start()
        requests.start()
        events = self._events
        while events and events[0][0] < end_s:
            self.now_s, _, act, arguments = heappop(events)
            act(*arguments)
        return Result(
            latencies_s=np.array(requests.latencies_s),
            services_s=np.array(requests.services_s),
            passes=tuple(one.passes for one in made),
            turnarounds_s=np.array(self.turnarounds.seconds),
            bounded=np.array(self.turnarounds.bounded, dtype=bool),
            launches=self.launches,
            busy_s=self._busy / self._all,
        )

    def _measured(self, name: str, stream: Stream) -> _Measures:
        """Return what the library knows of kernels after it has chosen all forms."""
        gpu = SimulatedGpu(self.sms, self.way, costs=self.costs, bound_s=self.bound_s)
        alone = gpu._other(name, Work(stream))
        assert isinstance(alone, (_Gated, _Blocking))
        if isinstance(alone, _Gated):
            alone.gate = _Gate(gpu, [alone])
        else:
            alone.page = _Page(gpu, [alone])
        alone.start()
        while not alone.measures.are_final:
            gpu.now_s, _, act, arguments = heappop(gpu._events)
            act(*arguments)
        return alone.measures

    def _other(self, name: str, work: Work) -> _Passes:
        if self.way.startswith("gate"):
            return _Gated(self, name, work)
        if self.way.startswith("blocking"):
            return _Blocking(self, name, work)
        if self.way == "tgs":
            return _Limited(self, name, work)
        client = _Passes(self, name, work)
        if self.way == "mps-cap":
            client.most_used = round(self._cap * self.sms) * _UNITS
        return client

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

    def begin(self, grid: _Grid) -> None:
        """Have a kernel dispatched that is the first of its stream."""
        if not grid.client.critical:
            self.launches += 1
        if not grid.left:
            grid.begun_s = self.now_s
            grid.ended(grid)
        elif self._turns:
            self._turns.ready(grid)
        else:
            self.put(grid)

    def put(self, grid: _Grid) -> None:
        """Have the blocks of a kernel dispatched."""
        if self._first and grid.client.critical:
            self._grids.insert(0, grid)
        else:
            self._grids.append(grid)
        self._dispatch()

    def stop(self, grid: _Grid) -> None:
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

    def _fly(self, grid: _Grid, places: int, blocks: int) -> None:
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

    def _land(self, grid: _Grid, places: int, blocks: int) -> None:
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

    def _release(self, grid: _Grid, places: int) -> None:
        taken = places * grid.need
        grid.flying -= places
        self._free += taken
        grid.client.used -= taken
        if not grid.client.critical:
            self._running -= places
            if not self._running:
                self.turnarounds.rests(self.now_s)

    def _end(self, grid: _Grid) -> None:
        self._grids.remove(grid)
        if self._turns:
            self._turns.over()
        grid.ended(grid)


class _Turns:
    """Time slicing: one client at a time has the GPU, and keeps it for a turn while it has work."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self.clients: list[_Client] = []
        self._ready: dict[_Client, _Grid] = {}
        self._owner: _Client | None = None
        self._since_s = 0.0
        self._running = self._changing = False

    def ready(self, grid: _Grid) -> None:
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

    def _change(self, owner: _Client) -> None:
        self._owner, self._since_s = owner, self._gpu.now_s
        self._changing = False
        self._go_on()


class _Turnarounds:
    """How long best-effort blocks still run after a request came."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.bounded: list[bool] = []
        self._counts = False
        self._keeps = True
        self._ran_s = 0.0
        self._since_s: float | None = None
        """Since when such blocks run, if they do."""

    def came(self, now_s: float, active: Sequence[_Gated | _Blocking]) -> None:
        """Note a request, and the clients of which something is in flight."""
        self.over(active=False)
        if active:
            self._counts, self._ran_s = True, 0.0
            self._keeps = all(one.keeps_bound for one in active)
            if self._since_s is not None:
                self._since_s = now_s

    def began(self, *, keeps_bound: bool) -> None:
        """Note that a launch of those clients begins."""
        self._keeps &= keeps_bound

    def runs(self, now_s: float) -> None:
        """Note that the first best-effort block begins."""
        self._since_s = now_s

    def rests(self, now_s: float) -> None:
        """Note that the last one has ended."""
        assert self._since_s is not None
        self._ran_s += now_s - self._since_s
        self._since_s = None

    def over(self, *, active: bool) -> None:
        """Note whether anything is still in flight."""
        if self._counts and not active:
            self.seconds.append(self._ran_s)
            self.bounded.append(self._keeps)
            self._counts = False


class _Requests(_Client):
    """The latency-critical client."""

    def __init__(self, gpu: SimulatedGpu, stream: Stream, arrivals_s: Sequence[float]) -> None:
        super().__init__(gpu, "critical", critical=True)
        self.kinds, self.arrivals_s = stream.kinds, list(map(float, arrivals_s))
        self.library: _Gate | _Page | None = None
        self.latencies_s: list[float] = []
        self.services_s: list[float] = []
        self.kernels = 0
        """Kernels that have ended."""
        self._place = len(self.kinds)
        self._launched_s = 0.0
        self._next = 0

    @property
    def has_work(self) -> bool:
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
        self.gpu.begin(_Grid(self, self.kinds[self._place], self._ended))

    def _ended(self, grid: _Grid) -> None:
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


class _Passes(_Client):
    """A best-effort client whose kernels are dispatched as they come."""

    def __init__(self, gpu: SimulatedGpu, name: str, work: Work) -> None:
        super().__init__(gpu, name, critical=False)
        self.kinds = work.stream.kinds
        self._arrivals = iter(work.arrivals_s.tolist()) if work.arrivals_s is not None else None
        self._each_s = [kind.block_s * kind.blocks / kind.residency for kind in self.kinds]
        self._work_s = 0.0
        self._place = 0
        self._idle = False

    @property
    def has_work(self) -> bool:
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
        grid = _Grid(self, self.kinds[self._place], self._ended)
        gpu.at(gpu.now_s + gpu.costs.gap_s, gpu.begin, grid)

    def _ended(self, grid: _Grid) -> None:
        self.over()


# TGS.


class _Limited(_Passes):
    """A best-effort client whose launches are limited to a number of blocks each 50 ms."""

    limit: float = math.inf
    launched: int = 0
    _waits: bool = False

    def next(self) -> None:
        if self.launched > self.limit:
            self._waits = True
            return
        self.launched += self.kinds[self._place].blocks
        super().next()

    def begin_window(self) -> None:
        """Forget what was launched."""
        self.launched = 0
        if self._waits:
            self._waits = False
            self.next()


class _Tgs:
    """The rate control of TGS: AIMD after a slow start, with the constants of its code.

    TGS (NSDI 2023, "adaptive rate control"; github.com/pkusys/TGS, ``low_priority_hijack_call.c``)
    compares the rate at which the production job launches blocks with the rate that it had alone,
    and limits the blocks that the other may launch each 50 ms: 1.5 times as many while the rates
    differ by at most 3 %, then a little more or 8 % less, and a tenth where they differ by 9 %. It
    was made for trainings. Requests have no constant rate; so that it is not misled by that, the
    rate alone is computed here from the very arrivals. Rates are those of the last 5 s, as in its
    code, but are compared more often, as the runs here are short; the limit begins with what the
    client launches alone.
    """

    _WINDOW_S: Final = 0.05
    _RATE_S: Final = 5.0
    _THRESHOLD: Final = 0.03
    _LEAST: Final = 1000.0

    def __init__(
        self, gpu: SimulatedGpu, requests: _Requests, limited: list[_Limited], period_s: float
    ) -> None:
        self._gpu, self._requests, self._limited, self._period_s = gpu, requests, limited, period_s
        each_s = sum(kind.alone_s(gpu.sms) + gpu.costs.gap_s for kind in requests.kinds)
        starts, free_s = [], 0.0
        for arrival_s in requests.arrivals_s:
            starts.append(max(arrival_s, free_s))
            free_s = starts[-1] + each_s + gpu.costs.turnover_s
        self._starts, self._each_s = np.array(starts), each_s
        self._slow_start, self._sign = True, -1
        windows = math.ceil(self._RATE_S / period_s)
        self._counts = deque([(0.0, 0.0)], maxlen=windows)
        for one in limited:
            alone_s = sum(kind.alone_s(gpu.sms) + gpu.costs.gap_s for kind in one.kinds)
            one.limit = self._WINDOW_S / alone_s * sum(kind.blocks for kind in one.kinds)
        gpu.at(self._WINDOW_S, self._begin_window)
        gpu.at(period_s, self._compare)

    def _begin_window(self) -> None:
        for one in self._limited:
            one.begin_window()
        self._gpu.at(self._gpu.now_s + self._WINDOW_S, self._begin_window)

    def _compare(self) -> None:
        now_s, kernels = self._gpu.now_s, len(self._requests.kinds)
        parts = np.clip((now_s - self._starts) / self._each_s, 0, 1)
        expected = float(parts.sum()) * kernels
        ended, expected_then = self._counts[0]
        self._counts.append((self._requests.kernels, expected))
        alone = max(1.0, expected - expected_then)
        apart = abs(self._requests.kernels - ended - alone) / alone
        blocks = sum(kind.blocks for kind in self._requests.kinds) / kernels * alone
        for one in self._limited:
            one.limit = self._limit(one.limit, apart, blocks)
        self._slow_start, self._sign = self._state(apart)
        self._gpu.at(now_s + self._period_s, self._compare)

    def _limit(self, limit: float, apart: float, blocks: float) -> float:
        if self._slow_start:
            return limit * 1.5 + 1 if apart <= self._THRESHOLD else limit / 1.5
        if apart <= self._THRESHOLD:
            limit += max(0.00025 * blocks, self._LEAST)
        else:
            limit -= max(0.08 * limit, self._LEAST)
        return max(0.0, limit / 10 if apart >= 3 * self._THRESHOLD else limit)

    def _state(self, apart: float) -> tuple[bool, int]:
        if self._slow_start:
            return apart <= self._THRESHOLD, -1
        return apart >= 3 * self._THRESHOLD, 1 if apart <= self._THRESHOLD else -1


class _Measures:
    """What the library knows of a client's kernels: times of the whole ones, and forms."""

    def __init__(
        self, gpu: SimulatedGpu, name: str, kinds: Sequence[KernelKind], *, forms: Sequence[str]
    ) -> None:
        self.choice = FormChoice(gpu.sms, gpu.bound_s)
        self.kernels = [
            Kernel(
                Size(f"{name} {place}", kind.blocks, kind.threads),
                sliceable=kind.preemptible and "slices" in forms,
                preemptible=kind.preemptible and "workers" in forms,
            )
            for place, kind in enumerate(kinds)
        ]
        self._runs = [0] * len(kinds)
        self._least_s = [math.inf] * len(kinds)

    def has_forms(self, place: int) -> bool:
        """Return whether a kernel has forms besides the whole one."""
        return self.kernels[place].sliceable or self.kernels[place].preemptible

    def is_timed(self, place: int) -> bool:
        """Return whether the whole kernel has run as often as it is measured."""
        return self._runs[place] >= SAMPLES

    def whole_s(self, place: int) -> float | None:
        """Return the least time of the whole kernel, if there is one."""
        return self._least_s[place] if self._runs[place] else None

    def form(self, place: int) -> LaunchForm:
        """Return the form of a kernel's next launch."""
        return self.choice.form(self.kernels[place]) if self.has_forms(place) else WHOLE

    def add(self, place: int, form: LaunchForm, seconds: float) -> None:
        """Note the time of a launch, without its waits."""
        if form == WHOLE and not self.is_timed(place):
            self._runs[place] += 1
            self._least_s[place] = min(self._least_s[place], seconds)
        if self.has_forms(place):
            size = self.kernels[place].size
            self.choice.add(size, form, seconds / size.blocks)

    @property
    def are_final(self) -> bool:
        """Whether nothing is left to measure."""
        return all(
            self.choice.chosen(kernel.size) if self.has_forms(place) else self.is_timed(place)
            for place, kernel in enumerate(self.kernels)
        )


# The gate.


@dataclass
class _Part:
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


class _Gate:
    """The gates of all best-effort processes, which are moved together, and their guards."""

    def __init__(self, gpu: SimulatedGpu, clients: list[_Gated]) -> None:
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

    def _flag(self, client: _Gated, epoch: int) -> None:
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


class _Gated(_Passes):
    """A best-effort client whose stream waits at a gate; its host runs ahead."""

    gate: _Gate

    def __init__(self, gpu: SimulatedGpu, name: str, work: Work) -> None:
        super().__init__(gpu, name, work)
        self.parked: int | None = None
        """The class of the launch that waits at the closed gate."""
        self.active = False
        self.grid: _Grid | None = None
        self.flagged = self.keeps_bound = False
        forms = {"gate-slices": ("slices",), "gate-workers": ("slices", "workers")}
        self.measures = _Measures(gpu, name, self.kinds, forms=forms.get(gpu.way, ()))
        self._groups = Groups(gpu.bound_s)
        self._parts: deque[_Part] = deque()
        self._form = WHOLE
        self._executed = 0
        self._took_s = 0.0

    def idle(self) -> None:
        self.active = False
        self._groups.left_s = 0.0
        self.gate.note()

    def next(self) -> None:
        place, kind = self._place, self.kinds[self._place]
        self._executed, self._took_s = 0, 0.0
        self._form = self.measures.form(place) if self.measures.is_timed(place) else WHOLE
        self._parts.extend(self._planned(place, kind))
        self._to_gate()

    def _planned(self, place: int, kind: KernelKind) -> Iterator[_Part]:
        """Yield the launches of a kernel."""
        costs, form = self.gpu.costs, self._form
        whole_s, measured = self.measures.whole_s(place), not self.measures.is_timed(place)
        if form.kind == "whole":
            wait = self._groups.wait(whole_s, apart=measured)
            keeps = whole_s is not None and whole_s <= self.gpu.bound_s
            yield _Part(wait, None, keeps, after_s=costs.event_s if measured else 0.0)
            return
        size = self.measures.kernels[place].size
        turnaround_s = self.measures.choice.turnaround_s(size, form)
        known = not math.isnan(turnaround_s)
        keeps = known and turnaround_s <= self.gpu.bound_s
        if form.kind == "slices":
            left = kind.blocks
            while left:
                blocks = min(form.size, left)
                left -= blocks
                wait = self._groups.wait(turnaround_s if known else whole_s, apart=not known)
                yield _Part(wait, blocks, keeps)
            return
        # The last launch of workers has no flag: it ends what is left.
        again_s = costs.wait_s + 2 * costs.gap_s + costs.worker_step_s
        about_s = turnaround_s * kind.blocks / form.size if known else whole_s or 0.0
        for _ in range(max(1, int(costs.repeats * about_s / again_s))):
            wait = self._groups.wait(turnaround_s if known else None, apart=True)
            yield _Part(
                wait,
                None,
                keeps,
                after_s=costs.gap_s,
                workers=form.size,
                chunk=form.chunk,
                flag=True,
            )
        wait = self._groups.wait(about_s or None, apart=True)
        yield _Part(wait, None, False, workers=form.size, chunk=form.chunk)

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
        grid = _Grid(
            self,
            kind,
            self._ended,
            blocks=left if part.blocks is None else part.blocks,
            workers=min(part.workers, left),
            chunk=part.chunk,
        )
        self.gpu.at(self.gpu.now_s + part.after_s, self._begin, grid)

    def _begin(self, grid: _Grid) -> None:
        self.grid = grid
        self.gpu.begin(grid)

    def _ended(self, grid: _Grid) -> None:
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


# The library before the gate.


class _Page:
    """What latency-critical processes told the others before the gate."""

    def __init__(self, gpu: SimulatedGpu, clients: list[_Blocking]) -> None:
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


class _Blocking(_Passes):
    """A best-effort client that launches one part at a time, when its host has seen the last end.

    The host looks for a while without a pause, then between sleeps; kernels are timed by its clock.
    """

    page: _Page

    def __init__(self, gpu: SimulatedGpu, name: str, work: Work) -> None:
        super().__init__(gpu, name, work)
        self.grid: _Grid | None = None
        forms = ("slices", "workers") if gpu.way == "blocking-forms" else ()
        self.measures = _Measures(gpu, name, self.kinds, forms=forms)
        self._form = WHOLE
        self._executed = 0
        self._took_s = self._since_s = 0.0

    @property
    def keeps_bound(self) -> bool:
        """Whether what is in flight should keep the bound."""
        size = self.measures.kernels[self._place].size
        turnaround_s = self.measures.choice.turnaround_s(size, self._form)
        return turnaround_s <= self.gpu.bound_s

    def next(self) -> None:
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
        self.grid = _Grid(self, kind, self._ended, blocks=blocks, workers=workers, chunk=form.chunk)
        if workers and self.page.waits:
            self.grid.left = 0
        self.gpu.begin(self.grid)

    def _ended(self, grid: _Grid) -> None:
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
