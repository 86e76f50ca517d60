"""The cost of a pool of nodes, compared with the pool of one machine in the same run.

    python benchmarks/cluster/nodes.py [--starts 20] [--losses 3] [--nodes 200] [--seconds 20]

- Launch: from the submission of a gang until its last rank writes the time, on the ``cpu`` pool
  of this machine, and on agents of this machine (real processes, each with a device).
- Loss: from the kill of a rank, or the freeze of a node (SIGSTOP of its agent), until the gang
  waits again and until it runs again.
- Controller: CPU time and memory of the service, idle and with all devices in use, with many
  agents whose ranks are simulated (``simulated_nodes.py``) and with the simulated pool, which has
  as many devices in its own process.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "live"))

from faults import state_directory
from load import ME
from service_process import Cores, ServiceProcess, Setup, Simulated
from socket_agents import AgentProcess, SocketNodes

from dovetail.cluster.pool import NodesPool
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.views import JobView
from dovetail.executor.pools.pool import NodePool
from dovetail.instances.instance import Cluster, Gpu, Instance, Node

_STAMP: Final = 'date +%s.%N >> "$1"; sleep 600'
_SOON_S: Final = 0.02
_PATIENCE_S: Final = 120.0
_RUNS: Final = (JobState.PROFILING, JobState.RUNNING)
_QUEUED: Final = (JobState.SUBMITTED, JobState.WAITING)
_ADMINISTRATOR: Final = ME.replace(uid=0)


@dataclass(frozen=True)
class Nodes:
    """Makes pools of nodes at sockets of this machine (a ``make_pool``)."""

    found: SocketNodes

    def __call__(self, directory: Path) -> NodePool:
        """Return a pool that keeps its files in the directory."""
        return NodesPool(directory, self.found)


@contextmanager
def agents(directory: Path, count: int) -> Iterator[list[AgentProcess]]:
    """Run agents with one device of the ``cpu`` pool each, for as long as the block takes."""
    made = [AgentProcess(directory, k, "cpu:devices=1") for k in range(1, count + 1)]
    try:
        yield made
    finally:
        for agent in made:
            agent.end()


def _nodes(made: Sequence[AgentProcess]) -> Nodes:
    return Nodes(SocketNodes({agent.node: agent.state for agent in made}))


@contextmanager
def service(directory: Path, make_pool: Callable[[Path], NodePool]) -> Iterator[ServiceProcess]:
    """Run a service for as long as the block takes; no job is left."""
    directory.mkdir(exist_ok=True)
    setup = Setup(directory, make_pool, "fifo", watching=WatchOptions(), sample_s=1.0)
    made = ServiceProcess(setup)
    try:
        yield made
        _end_all(made)
    finally:
        made.stop()


def _end_all(made: ServiceProcess) -> None:
    made.ask("drain", [], True, _ADMINISTRATOR)
    for view in made.ask("jobs"):
        made.ask("cancel", view.id, ME)
    _wait(lambda: not made.ask("jobs"))


def _wait(condition: Callable[[], object]) -> float:
    """Return when a condition came to hold."""
    until_s = time.time() + _PATIENCE_S
    while not condition():
        if time.time() > until_s:
            raise TimeoutError("nothing has happened for a long time")
        time.sleep(_SOON_S)
    return time.time()


def _gang(times: Path, workers: int) -> JobSpec:
    return JobSpec(
        command=("sh", "-c", _STAMP, "sh", str(times)),
        workload="gang",
        owner=ME,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        workers=workers,
        grace_s=0.0,
        retries=100,
    )


# Launch.


def launches_s(made: ServiceProcess, directory: Path, workers: int, starts: int) -> list[float]:
    """Return the seconds from each submission until the last rank of the gang runs."""
    found = []
    for k in range(starts):
        times = directory / f"times{k}"
        submitted_s = time.time()
        (name,) = made.ask("submit", [_gang(times, workers)], ME)
        _wait(lambda times=times: times.exists() and len(times.read_text().split()) == workers)
        found.append(max(map(float, times.read_text().split())) - submitted_s)
        made.ask("cancel", name, ME)
        _wait(lambda: not made.ask("jobs"))
    return found


def summary(seconds: Sequence[float]) -> str:
    """Return a median with its extremes."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{middle:.2f} s (median of {len(seconds)}, {low:.2f} to {high:.2f})"


# Loss.


@dataclass(frozen=True)
class Loss:
    """Seconds from a loss until the gang was `lost` or stopping, waited again, and ran again."""

    seen_s: float
    queued_s: float
    again_s: float


def loss(made: ServiceProcess, directory: Path, lose: Callable[[Sequence[int]], None]) -> Loss:
    """Lose a rank of a gang of two, and return how long detection and recovery took."""
    (name,) = made.ask("submit", [_gang(directory / "times", 2)], ME)
    _wait(lambda: made.ask("job", name).state in _RUNS)
    before = made.ask("job", name)
    lost_s = time.time()
    lose(before.pids)
    _wait(lambda: _is_again(made.ask("job", name), before.runs))
    after = made.ask("job", name).history[len(before.history) :]
    moments = [
        after[0].at_s,
        next(step.at_s for step in after if step.state in _QUEUED),
        next(step.at_s for step in reversed(after) if step.state in _RUNS),
    ]
    made.ask("cancel", name, ME)
    _wait(lambda: not made.ask("jobs"))
    return Loss(*(at_s - lost_s for at_s in moments))


def _is_again(view: JobView, runs: int) -> bool:
    return view.runs > runs and view.state in _RUNS


def _kill_one(pids: Sequence[int]) -> None:
    os.kill(pids[0], signal.SIGKILL)


def print_losses(what: str, losses: Sequence[Loss]) -> None:
    """Print how long detection and recovery took."""
    for name, seconds in (
        ("seen", [each.seen_s for each in losses]),
        ("waits again", [each.queued_s for each in losses]),
        ("runs again", [each.again_s for each in losses]),
    ):
        print(f"  {what}: {name} after {summary(seconds)}", flush=True)


# Controller.


def controller(made: ServiceProcess, gangs: int, workers: int, seconds: float) -> None:
    """Print the use of the service, idle and with gangs on all devices."""
    process = psutil.Process(made.pid)
    _print_use("idle", process, seconds)
    specs = [_gang(Path("none"), workers).replace(workload=f"w{k % 10}") for k in range(gangs)]
    specs = [spec.replace(command=("train", "work_s=1e6")) for spec in specs]
    began_s = time.time()
    names = made.ask("submit", specs, ME)
    runs = _wait(lambda: all(view.state in _RUNS for view in made.ask("jobs")))
    print(f"  {len(names)} gangs of {workers} run {runs - began_s:.1f} s after their submission")
    _print_use(f"{gangs * workers} devices in use", process, seconds)


def _print_use(what: str, process: psutil.Process, seconds: float) -> None:
    time.sleep(min(5.0, seconds))
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = (after.user + after.system - before.user - before.system) / seconds
    mib = process.memory_info().rss / 2**20
    threads = process.num_threads()
    print(f"  {what}: {used:.1%} of a core, {mib:.0f} MiB, {threads} threads", flush=True)


def _alike(nodes: int, devices: int) -> Instance:
    """Return an instance whose cluster is that of the simulated nodes."""
    made = tuple(
        Node(
            id=f"n{k}",
            rack=f"r{k // 32}",
            gpus=tuple(
                Gpu(id=f"n{k}/gpu{j}", model="simulated", memory_mib=80_000.0)
                for j in range(devices)
            ),
        )
        for k in range(nodes)
    )
    workloads = {f"w{k}": {"memory_mib": 1000.0} for k in range(10)}
    cluster = Cluster(nodes=made)
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "alike",
            "cluster": cluster.to_data(),
            "workloads": workloads,
            "jobs": [],
        }
    )


@contextmanager
def simulated_nodes(directory: Path, nodes: int, devices: int) -> Iterator[SocketNodes]:
    """Serve simulated nodes in a process of their own."""
    program = str(Path(__file__).with_name("simulated_nodes.py"))
    words = [str(directory), "--nodes", str(nodes), "--devices", str(devices)]
    command = [sys.executable, program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        racks = {f"n{k}": f"r{k // 32}" for k in range(nodes)}
        try:
            yield SocketNodes(dict.fromkeys(racks, directory), racks)
        finally:
            process.terminate()


# All of it.


def print_launches(starts: int) -> None:
    """Print how long gangs take to launch."""
    print("launch: from submission until every rank runs", flush=True)
    with state_directory() as directory:
        with service(directory / "service", Cores()) as made:
            local = launches_s(made, directory, 2, starts)
        print(f"  one machine, gang of 2: {summary(local)}", flush=True)
    for workers in (2, 3):
        with (
            state_directory() as directory,
            agents(directory, workers) as there,
            service(directory / "service", _nodes(there)) as made,
        ):
            found = launches_s(made, directory, workers, starts)
            print(f"  {workers} nodes, gang of {workers}: {summary(found)}", flush=True)


def print_all_losses(losses: int) -> None:
    """Print how long it takes that a gang which has lost a rank runs again."""
    print("loss of a rank of a gang of 2", flush=True)
    with state_directory() as directory, service(directory / "service", Cores()) as made:
        found = [loss(made, directory, _kill_one) for _ in range(losses)]
        print_losses("one machine, rank killed", found)
    with (
        state_directory() as directory,
        agents(directory, 3) as there,
        service(directory / "service", _nodes(there)) as made,
    ):
        found = [loss(made, directory, _kill_one) for _ in range(losses)]
        print_losses("3 nodes, rank killed", found)
        print_losses(
            "3 nodes, node frozen", [_frozen(made, directory, there) for _ in range(losses)]
        )


def _frozen(made: ServiceProcess, directory: Path, there: Sequence[AgentProcess]) -> Loss:
    """Freeze a node of a gang, and return how long detection and recovery took."""
    frozen: list[AgentProcess] = []

    def freeze(_: Sequence[int]) -> None:
        (view,) = made.ask("jobs")
        node = view.gpus[0].partition("/")[0]
        frozen.append(next(agent for agent in there if agent.node == node))
        frozen[0].freeze()

    found = loss(made, directory, freeze)
    frozen[0].thaw()
    _wait(lambda: not any(device.trouble for device in made.ask("service").devices))
    return found


def print_controller(nodes: int, seconds: float, devices: int = 4) -> None:
    """Print the use of the service with many nodes."""
    gangs = nodes * devices // 8
    print(f"controller: {nodes} nodes of {devices} devices", flush=True)
    with state_directory() as directory:
        pool = Simulated(_alike(nodes, devices))
        print("  simulated pool, in the same process", flush=True)
        with service(directory / "service", pool) as made:
            controller(made, gangs, 8, seconds)
    with (
        state_directory() as directory,
        simulated_nodes(directory, nodes, devices) as found,
        service(directory / "service", Nodes(found)) as made,
    ):
        print("  simulated nodes, over a socket", flush=True)
        controller(made, gangs, 8, seconds)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--losses", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    load, cores = psutil.getloadavg()[0], psutil.cpu_count()
    print(f"load average when this began: {load:.1f} on {cores} cores", flush=True)
    print_launches(options.starts)
    print_all_losses(options.losses)
    print_controller(options.nodes, options.seconds)


if __name__ == "__main__":
    main()
