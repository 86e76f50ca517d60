"""The simulated GPU with its clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.isolation.scheduler import BOUND_S

from .blocking import Announcements, BlockingPasses
from .clients import Passes, Requests
from .costs import COSTS, Costs
from .device import UNITS, Device
from .gated import GatedPasses, Gates
from .kernels import Stream, Work
from .measures import KernelMeasures
from .tgs import LimitedPasses, RateControl
from .ways import Way


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


class SimulatedGpu(Device):
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
        super().__init__(sms, way, costs, bound_s, seed)
        self._cap, self._tgs_period_s = cap, tgs_period_s

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
        requests = Requests(self, critical, arrivals_s)
        made = [
            self._other(f"other {k}", work)
            for k, work in enumerate(others if self.way != "alone" else ())
        ]
        if self.way.startswith("gate"):
            gated = [one for one in made if isinstance(one, GatedPasses)]
            requests.library = gate = Gates(self, gated)
            for one in gated:
                one.gate = gate
        elif self.way.startswith("blocking"):
            blocking = [one for one in made if isinstance(one, BlockingPasses)]
            requests.library = page = Announcements(self, blocking)
            for each in blocking:
                each.page = page
        elif self.way == "tgs":
            limited = [one for one in made if isinstance(one, LimitedPasses)]
            RateControl(self, requests, limited, self._tgs_period_s)
        if self.turns:
            self.turns.clients = [requests, *made]
        for client, work in zip(made, others, strict=False):
            if measured and isinstance(client, (GatedPasses, BlockingPasses)):
                client.measures = self._measured(client.name, work.stream)
        for client in made:
            client.start()
        requests.start()
        self.happen(end_s)
        return Result(
            latencies_s=np.array(requests.latencies_s),
            services_s=np.array(requests.services_s),
            passes=tuple(one.passes for one in made),
            turnarounds_s=np.array(self.turnarounds.seconds),
            bounded=np.array(self.turnarounds.bounded, dtype=bool),
            launches=self.launches,
            busy_s=self.busy_s,
        )

    def _measured(self, name: str, stream: Stream) -> KernelMeasures:
        """Return what the library knows of kernels after it has chosen all forms."""
        gpu = SimulatedGpu(self.sms, self.way, costs=self.costs, bound_s=self.bound_s)
        alone = gpu._other(name, Work(stream))
        assert isinstance(alone, (GatedPasses, BlockingPasses))
        if isinstance(alone, GatedPasses):
            alone.gate = Gates(gpu, [alone])
        else:
            alone.page = Announcements(gpu, [alone])
        alone.start()
        gpu.happen(math.inf, lambda: alone.measures.are_final)
        return alone.measures

    def _other(self, name: str, work: Work) -> Passes:
        if self.way.startswith("gate"):
            return GatedPasses(self, name, work)
        if self.way.startswith("blocking"):
            return BlockingPasses(self, name, work)
        if self.way == "tgs":
            return LimitedPasses(self, name, work)
        client = Passes(self, name, work)
        if self.way == "mps-cap":
            client.most_used = round(self._cap * self.sms) * UNITS
        return client
