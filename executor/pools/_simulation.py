"""Runs of live mode on a simulated cluster: no process, no file, and the clock is the caller's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dovetail.executor.jobs.events import AnyEvent, RankEnded, RankReady, RankStarted
from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.pools.pool import Progress
from dovetail.executor.simulation.cluster import FINISH, FIRST_KIND, SimulatedCluster
from dovetail.executor.simulation.history import Outcome
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload
from dovetail.solver.policies import Job, Start

_BEGIN, _KILL = FIRST_KIND, FIRST_KIND + 1
_SIGTERM, _SIGKILL = 15, 9
_OUT_OF_MEMORY: Final = 1


class Program(NamedTuple):
    """What a simulated rank does, read from words ``key=value`` of its command.

    Attributes
    ----------
    work_s : float
        Seconds it takes alone on a GPU of speed 1.
    status : int
        Its exit status afterwards; negative for a signal.
    rank : int or None
        The only rank that ends, while the others wait for it; None = all end.
    deaf : bool
        Whether it ignores a request to end.
    """

    work_s: float
    status: int = 0
    rank: int | None = None
    deaf: bool = False

    @classmethod
    def of(cls, spec: JobSpec, workload: Workload) -> Program:
        """Return the program of a job.

        ``work_s`` is that of the command, else the job's ``estimate_s``, else the workload's
        ``duration_s``.

        Raises
        ------
        InputError
            When a value is no number, or nothing says how much work there is.
        """
        words = _words(spec)
        work_s = words.get("work_s", spec.estimate_s or workload.duration_s)
        if work_s is None or work_s <= 0:
            raise InputError("must be > 0, or the job needs an estimate", "work_s", spec.workload)
        rank = int(words["rank"]) if "rank" in words else None
        if rank is not None and not 0 <= rank < spec.workers:
            raise InputError(f"must be in 0..{spec.workers - 1}, got {rank}", "rank", spec.workload)
        return cls(work_s, int(words.get("status", 0)), rank, bool(words.get("deaf", 0)))


@dataclass
class SimulatedRun:
    """A run, with everything that has to survive a restart of the service.

    Attributes
    ----------
    run : Run
        The run.
    begins_s : float
        When its ranks are ready and its work begins.
    done_s, as_of_s : float
        Seconds of work that were done at a moment; see `Simulation.settle`.
    kill_s : float or None
        When it is to be killed.
    began : bool
        Whether its ranks are ready.
    paused : bool
        Whether it stands still.
    statuses : list of (int or None)
        Exit status of each rank; None while it runs.
    """

    run: Run
    begins_s: float
    done_s: float
    as_of_s: float
    kill_s: float | None = None
    began: bool = False
    paused: bool = False
    statuses: list[int | None] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether at least one rank runs."""
        return any(status is None for status in self.statuses)

    @property
    def stands_still(self) -> bool:
        """Whether it does no work: it is paused, or the other ranks wait for one that ended."""
        return self.paused or any(status is not None for status in self.statuses)

    def events(self) -> Iterable[AnyEvent]:
        """Yield the events that lead to the present state of every rank."""
        for rank, status in enumerate(self.statuses):
            yield RankStarted(at_s=0.0, run=self.run.id, rank=rank)
            if self.began:
                yield RankReady(at_s=0.0, run=self.run.id, rank=rank)
            if status is not None:
                yield RankEnded(at_s=0.0, run=self.run.id, rank=rank, status=status)


class Simulation:
    """Runs on the GPUs of an instance; they slow each other down as its entries say.

    Parameters
    ----------
    truth : Instance
        Cluster, workloads and the true slowdowns; its jobs are not read.
    speed : float
        Seconds of work that are done in a second alone on a GPU of speed 1.

    Attributes
    ----------
    runs : dict of str to SimulatedRun
        All runs that were added and not removed, by id.
    """

    def __init__(self, truth: Instance, speed: float) -> None:
        self.runs: dict[str, SimulatedRun] = {}
        self._cluster = SimulatedCluster(truth)
        self._state = self._cluster.state
        self._workload = {name: k for k, name in enumerate(truth.workloads)}
        self._speed = speed
        self._names: list[str] = []
        self._jobs: dict[str, Job] = {}
        self._programs: dict[str, Program] = {}

    def refusal(self, run: Run) -> str:
        """Return why a run cannot be simulated; empty if it can."""
        if run.spec.workload not in self._workload:
            known = ", ".join(self._workload)
            return f"the instance has no workload {run.spec.workload!r}, only {known}"
        elsewhere = [s.gpu for s in run.seats if s.gpu not in self._state.machines.number]
        if elsewhere:
            return f"the instance has no GPU {elsewhere[0]!r}"
        try:
            self._program(run)
        except InputError as error:
            return str(error)
        return ""

    def add(self, simulated: SimulatedRun) -> None:
        """Add a new run, or one that was settled at the present moment."""
        run = simulated.run
        program = self._programs[run.id] = self._program(run)
        job = self._jobs[run.id] = self._job(run, program, simulated.done_s)
        self.runs[run.id] = simulated
        self._names.append(run.id)
        self._state.now = max(self._state.now, simulated.as_of_s)
        if simulated.kill_s is not None:
            self._cluster.push(simulated.kill_s, _KILL, job.number)
        if not simulated.began:
            self._cluster.push(simulated.begins_s, _BEGIN, job.number)
        elif simulated.alive:
            self._place(simulated, self._start(run))

    def remove(self, run: str) -> None:
        """Forget a run none of whose ranks runs."""
        del self.runs[run], self._jobs[run], self._programs[run]

    def settle(self) -> None:
        """Bring ``done_s`` of all runs up to the present moment."""
        for run, simulated in self.runs.items():
            simulated.as_of_s = self._state.now
            simulated.done_s = self._jobs[run].done(self._state.now)

    def stop(self, run: str, now_s: float, grace_s: float) -> list[AnyEvent]:
        """Ask a run to end; if it ignores that, it is killed after its grace."""
        simulated = self.runs[run]
        if not self._programs[run].deaf:
            return self._end(simulated, -_SIGTERM)
        if simulated.kill_s is None or now_s + grace_s < simulated.kill_s:
            simulated.kill_s = now_s + grace_s
            self._cluster.push(simulated.kill_s, _KILL, self._jobs[run].number)
        return []

    def pause(self, run: str, on: bool) -> None:
        """Let a run stand still, or go on; it slows its co-runners down all the same."""
        self.runs[run].paused = on
        self._halt(self.runs[run])

    def advance(self, now_s: float) -> list[AnyEvent]:
        """Move the clock to ``now_s`` and return what has happened."""
        found: list[AnyEvent] = []
        for event in self._cluster.advance(max(now_s, self._state.now)):
            simulated = self.runs.get(self._names[event.which])
            if simulated is not None and simulated.alive:
                found += self._happens(simulated, event.kind)
        return found

    def next_s(self) -> float:
        """Return when something may happen next, infinity for never."""
        return self._cluster.next_s()

    def progress(self, run: str) -> Progress:
        """Return how far a run is: all its ranks alike, as they wait for each other."""
        per_s = self._of(self.runs[run].run).throughput.get(100, 1.0)
        now_s = self._state.now
        done_s, work_s = self._jobs[run].done(now_s), self._programs[run].work_s
        return Progress(done_s * per_s, now_s, work_s * per_s)

    def energy_j(self, gpu: str) -> float:
        """Return the energy of a GPU so far; NaN where a power is unknown."""
        return self._cluster.energy_j(self._state.machines.number[gpu])

    def memory_mib(self, gpu: str) -> dict[str, float]:
        """Return the memory of the rank of each run that is at work on a GPU."""
        return {job.id: self._state.needs_mib(job) for job in self._residents(gpu)}

    def metrics(self, gpu: str) -> Mapping[str, float]:
        """Return the solo metrics of a GPU's only resident; none are known of several."""
        residents = self._residents(gpu)
        if len(residents) != 1:
            return {}
        metrics = self._state.workloads[residents[0].workload].metrics
        return {} if metrics is None else metrics.model_dump(exclude_none=True)

    # What happens.

    def _happens(self, simulated: SimulatedRun, kind: int) -> list[AnyEvent]:
        run = simulated.run.id
        if kind == _BEGIN:
            return self._begin(simulated)
        if kind == _KILL:
            return self._end(simulated, -_SIGKILL)
        assert kind == FINISH
        program = self._programs[run]
        return self._end(simulated, program.status, program.rank)

    def _begin(self, simulated: SimulatedRun) -> list[AnyEvent]:
        start = self._start(simulated.run)
        if self._cluster.obstacles(start):
            return self._end(simulated, _OUT_OF_MEMORY)
        simulated.began = True
        self._place(simulated, start)
        run, ranks = simulated.run.id, range(len(simulated.statuses))
        return [RankReady(at_s=0.0, run=run, rank=rank) for rank in ranks]

    def _end(self, simulated: SimulatedRun, status: int, only: int | None = None) -> list[AnyEvent]:
        """End the ranks that run still, or one of them."""
        run, statuses = simulated.run.id, simulated.statuses
        ranks = range(len(statuses)) if only is None else [only]
        ended = [rank for rank in ranks if statuses[rank] is None]
        for rank in ended:
            statuses[rank] = status
        if simulated.alive:
            self._halt(simulated)
        elif self._is_placed(run):
            job = self._jobs[run]
            gpus = job.gpus
            self._cluster.remove(job)
            self._cluster.renew_rates(gpus)
        return [RankEnded(at_s=0.0, run=run, rank=rank, status=status) for rank in ended]

    def _place(self, simulated: SimulatedRun, start: Start) -> None:
        model = self._state.machines.model[start.gpus[0]]
        speed = self._speed * self._state.speed[model][start.job.workload]
        self._cluster.place(start, Outcome(start.job.work_s), speed)
        self._cluster.pause(start.job, simulated.stands_still)

    def _halt(self, simulated: SimulatedRun) -> None:
        if self._is_placed(simulated.run.id):
            self._cluster.pause(self._jobs[simulated.run.id], simulated.stands_still)

    # Runs in the terms of the cluster.

    def _is_placed(self, run: str) -> bool:
        return self._jobs[run].phase == "running"

    def _residents(self, gpu: str) -> list[Job]:
        return self._state.residents[self._state.machines.number[gpu]]

    def _of(self, run: Run) -> Workload:
        return self._state.workloads[self._workload[run.spec.workload]]

    def _program(self, run: Run) -> Program:
        return Program.of(run.spec, self._of(run))

    def _start(self, run: Run) -> Start:
        job = self._jobs[run.id]
        sizes = [mode.sub_batch for mode in self._state.modes[job.workload]]
        return Start(
            job,
            tuple(self._state.machines.number[seat.gpu] for seat in run.seats),
            tuple(seat.share for seat in run.seats),
            sizes.index(run.sub_batch) if run.sub_batch in sizes else 0,
        )

    def _job(self, run: Run, program: Program, done_s: float) -> Job:
        return Job(
            number=len(self._names),
            id=run.id,
            workload=self._workload[run.spec.workload],
            workers=len(run.seats),
            work_s=program.work_s,
            arrival_s=0.0,
            done_s=done_s,
        )


def _words(spec: JobSpec) -> dict[str, float]:
    """Return the numbers that a command gives to the words of ``Program``."""
    found = {}
    for word in spec.command:
        key, _, value = word.partition("=")
        if key in Program._fields:
            found[key] = _number(key, value)
    return found


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"must be a number, got {value!r}", key)
    return number
