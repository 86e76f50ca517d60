"""Many simulated nodes in one process, each a real agent.

    python benchmarks/cluster/simulated_nodes.py DIRECTORY [--nodes 200] [--devices 4]

Agents and the protocol are the product's, the calls are from ``socket_agents``. Only the ranks are
simulated: they are not processes, start immediately, and run until they are stopped.
"""

# ruff: noqa: D102 - the methods of a pool are documented in ``LocalPool``

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from socket_agents import serve

from dovetail.cluster.agent import Agent
from dovetail.executor.jobs.events import RankEnded, RankReady, RankRefused, RankStarted
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.runs.files import Part, PreparedPart, Rendezvous, whole
from dovetail.executor.system.clock import boot_s
from dovetail.instances.instance import Cluster, Gpu, Node

_MODEL: Final = "simulated"
_MEMORY_MIB: Final = 80_000.0
_RATE: Final = 10.0


class SimulatedRanks(LocalPool):
    """Devices of this machine whose ranks are no processes."""

    name = "simulated"
    notice = "simulated ranks: no process runs"

    def __init__(self, directory: Path, devices: int) -> None:
        super().__init__(directory)
        self._devices = [f"gpu{k}" for k in range(devices)]
        gpus = tuple(Gpu(id=d, model=_MODEL, memory_mib=_MEMORY_MIB) for d in self._devices)
        self._cluster = Cluster(nodes=(Node(id="here", gpus=gpus),))
        self._parts: dict[str, Part] = {}
        self._began_s: dict[str, float] = {}

    def cluster(self) -> Cluster:
        return self._cluster

    def allowed(self, library: str, model: str) -> Collection[int]:
        return ()

    def usage(self) -> Mapping[str, Usage]:
        reading = Usage(boot_s(), memory_mib=1000.0, energy_j=0.0, source=self.name)
        return dict.fromkeys(self._devices, reading)

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        return ()

    def kept(self) -> Sequence[Run]:
        return [part.run for part in self._parts.values()]

    def has_trace(self, part: Part) -> bool:
        return part.run.id in self._began_s

    def keep(self, part: Part) -> None:
        self._parts.setdefault(part.run.id, part)

    def part(self, run: str) -> Part | None:
        return self._parts.get(run)

    def launch(self, run: Run) -> None:
        self.keep(whole(run))
        self.commit(run.id)

    def prepare(
        self, run: Run, ranks: Collection[int], rendezvous: Rendezvous | None = None
    ) -> None:
        rendezvous = rendezvous or Rendezvous(self._address, 29_500)
        self.keep(Part(run, tuple(ranks), rendezvous))
        self._report(PreparedPart(run.id, tuple(ranks), rendezvous))

    def commit(self, run: str) -> None:
        if run in self._began_s:
            return
        self._began_s[run] = boot_s()
        for rank in self._parts[run].ranks:
            self._report(RankStarted(at_s=0.0, run=run, rank=rank, pid=1, pid_started=1))
            self._report(RankReady(at_s=0.0, run=run, rank=rank))

    def abort(self, run: str, reason: str) -> None:
        for rank in self._parts[run].ranks:
            self._report(RankRefused(at_s=0.0, run=run, rank=rank, reason=reason, later=True))

    def stop(self, run: str, grace_s: float) -> None:
        for rank in self._parts[run].ranks:
            if run in self._began_s:
                self._report(RankEnded(at_s=0.0, run=run, rank=rank, status=-15))
            else:
                reason = "was never started"
                self._report(RankRefused(at_s=0.0, run=run, rank=rank, reason=reason))

    def release(self, run: str) -> None:
        self._parts.pop(run, None)
        self._began_s.pop(run, None)

    def progress(self, run: str) -> Sequence[Progress | None]:
        began_s, now_s = self._began_s.get(run), boot_s()
        progress = None if began_s is None else Progress(_RATE * (now_s - began_s), now_s)
        part = self._parts[run]
        return [progress if rank in part.ranks else None for rank in range(len(part.run.seats))]


async def serve_nodes(directory: Path, nodes: int, devices: int) -> None:
    """Serve the nodes, and print a line once they answer."""
    agents = {
        f"n{k}": Agent(
            directory / f"n{k}", lambda files: SimulatedRanks(files, devices), "127.0.0.1"
        )
        for k in range(nodes)
    }
    await serve(directory, agents, lambda: print("ready", flush=True))


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args()
    asyncio.run(serve_nodes(options.directory, options.nodes, options.devices))


if __name__ == "__main__":
    main()
