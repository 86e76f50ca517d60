"""What simulated runs do as time goes by: no process, no file, no clock of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dovetail.executor.jobs.events import AnyEvent, RankEnded, RankReady, RankStarted
from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.simulation.physics import Physics
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.solver.policies import Job, Start, State

_SLACK_S: Final = 1e-9
_SIGTERM, _SIGKILL = 15, 9
_OUT_OF_MEMORY: Final = 1


class Program(NamedTuple):
    """What a simulated rank does, told by words ``key=value`` of its command.

    Attributes
    ----------
    work_s : float
        Seconds it takes alone on a GPU of speed 1.
    status : int
        What it ends with then; negative for a signal.
    rank : int or None
        The rank that ends with ``status``, while the others wait for it in vain; None = all end.
    deaf : bool
        Whether it does nothing when it is asked to end.
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
    """A run with all that must outlive the service.

    Attributes
    ----------
    run : Run
        What runs.
    begins_s : float
        When its ranks are ready and its work begins.
    done_s, as_of_s : float
        Seconds of work done at a moment.
    kill_s : float or None
        When it is to be killed.
    began : bool
        Whether its ranks are ready.
    paused : bool
        Whether it stands still.
    statuses : list of (int or None)
        Of each rank; None while it runs.
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
        """Whether a rank of it still runs."""
        return any(status is None for status in self.statuses)

    @property
    def whole(self) -> bool:
        """Whether every rank of it runs; where one is gone, the others wait for it."""
        return all(status is None for status in self.statuses)

    def told(self) -> list[AnyEvent]:
        """Return what there is to tell of every rank."""
        found: list[AnyEvent] = []
        for rank, status in enumerate(self.statuses):
            about = {"at_s": 0.0, "run": self.run.id, "rank": rank}
            found.append(RankStarted.model_validate(about))
            if self.began:
                found.append(RankReady.model_validate(about))
            if status is not None:
                found.append(RankEnded.model_validate({**about, "status": status}))
        return found


class Simulation:
    """Simulated runs on the GPUs of an instance; they slow each other as its entries say.

    Parameters
    ----------
    truth : Instance
        Cluster, workloads and the true slowdowns; its jobs are not read.
    speed : float
        Seconds of work that are done in a second alone on a GPU of speed 1.
    """

    def __init__(self, truth: Instance, speed: float) -> None:
        table = SlowdownTable.of(truth)
        self.runs: dict[str, SimulatedRun] = {}
        self.energy_j = [0.0] * len(truth.places)
        self._state = State(truth, table)
        self._physics = Physics(self._state, table)
        self._gpu = {name: k for k, name in enumerate(truth.places)}
        self._workload = {name: k for k, name in enumerate(truth.workloads)}
        self._speed = speed
        self._now_s = -math.inf
        self._jobs: dict[str, Job] = {}
        self._programs: dict[str, Program] = {}

    def refusal(self, run: Run) -> str:
        """Return why a run cannot be simulated, empty where it can."""
        if run.spec.workload not in self._workload:
            known = ", ".join(self._workload)
            return f"the instance has no workload {run.spec.workload!r}, only {known}"
        elsewhere = [seat.gpu for seat in run.seats if seat.gpu not in self._gpu]
        if elsewhere:
            return f"the instance has no GPU {elsewhere[0]!r}"
        try:
            self._program(run)
        except InputError as error:
            return str(error)
        return ""

    def add(self, simulated: SimulatedRun) -> None:
        """Take in a run, a new one or one that has been going on."""
        run = simulated.run
        self.runs[run.id] = simulated
        self._programs[run.id] = self._program(run)
        self._jobs[run.id] = self._job(run)
        if simulated.began and simulated.alive:
            self._occupy(run.id)

    def remove(self, run: str) -> None:
        """Forget a run none of whose ranks runs."""
        del self.runs[run], self._jobs[run], self._programs[run]

    def stop(self, run: str, now_s: float, grace_s: float) -> list[AnyEvent]:
        """Ask a run to end at ``now_s``, and have it killed after its grace if it does not."""
        simulated = self.runs[run]
        if not self._programs[run].deaf:
            return self._end(run, -_SIGTERM)
        kill_s = now_s + grace_s
        simulated.kill_s = min(kill_s, simulated.kill_s or kill_s)
        return []

    def advance(self, now_s: float) -> list[AnyEvent]:
        """Let time pass up to ``now_s`` and return what has happened."""
        found: list[AnyEvent] = []
        while (at_s := self.next_s()) <= now_s:
            self._settle(at_s)
            for run in list(self.runs):
                found += self._happens(run, at_s)
        self._settle(now_s)
        return found

    def next_s(self) -> float:
        """Return when something happens next, infinity for never."""
        return min((self._next_of(run) for run in self.runs), default=math.inf)

    def iterations_per_s(self, run: str) -> float:
        """Return the iterations in a second of work."""
        return self._of(self.runs[run].run).throughput.get(100, 1.0)

    def work_s(self, run: str) -> float:
        """Return the seconds of work of a run."""
        return self._programs[run].work_s

    def residents(self, gpu: str) -> list[str]:
        """Return the runs that are at work on a GPU."""
        return [job.id for job in self._state.residents[self._gpu[gpu]]]

    def memory_mib(self, run: str) -> float:
        """Return the memory of one rank."""
        job = self._jobs[run]
        return self._state.modes[job.workload][job.mode].memory_mib

    def metrics(self, gpu: str) -> Mapping[str, float]:
        """Return the solo metrics of a GPU's only resident; nothing is known of several."""
        residents = self.residents(gpu)
        if len(residents) != 1:
            return {}
        metrics = self._of(self.runs[residents[0]].run).metrics
        return {} if metrics is None else metrics.model_dump(exclude_none=True)

    # What happens.

    def _next_of(self, run: str) -> float:
        simulated = self.runs[run]
        if not simulated.alive:
            return math.inf
        kill_s = math.inf if simulated.kill_s is None else simulated.kill_s
        if not simulated.began:
            return min(kill_s, simulated.begins_s)
        rate = self._rate(run)
        left_s = max(0.0, self._programs[run].work_s - simulated.done_s)
        return min(kill_s, simulated.as_of_s + left_s / rate if rate else math.inf)

    def _happens(self, run: str, at_s: float) -> list[AnyEvent]:
        """Let happen to a run what is due at this moment."""
        simulated = self.runs[run]
        if self._next_of(run) > at_s + _SLACK_S:
            return []
        if simulated.kill_s is not None and simulated.kill_s <= at_s:
            return self._end(run, -_SIGKILL)
        if not simulated.began:
            return self._begin(run)
        simulated.done_s = self._programs[run].work_s
        program = self._programs[run]
        return self._end(run, program.status, program.rank)

    def _begin(self, run: str) -> list[AnyEvent]:
        job = self._jobs[run]
        if self._physics.cannot_run(self._start_of(run)):
            return self._end(run, _OUT_OF_MEMORY)
        self.runs[run].began = True
        self._occupy(run)
        return [RankReady(at_s=0.0, run=run, rank=rank) for rank in range(job.workers)]

    def _end(self, run: str, status: int, only: int | None = None) -> list[AnyEvent]:
        """End the ranks that run still, or one of them."""
        simulated = self.runs[run]
        ranks = range(len(simulated.statuses)) if only is None else [only]
        ended = [rank for rank in ranks if simulated.statuses[rank] is None]
        for rank in ended:
            simulated.statuses[rank] = status
        if not simulated.alive:
            self._vacate(run)
        return [RankEnded(at_s=0.0, run=run, rank=rank, status=status) for rank in ended]

    def _settle(self, now_s: float) -> None:
        """Book everyone's progress up to a moment before which nothing happens."""
        self._meter(now_s)
        rates = {run: self._rate(run) for run in self.runs}
        for run, simulated in self.runs.items():
            passed_s = max(0.0, now_s - simulated.as_of_s)
            simulated.done_s += rates[run] * passed_s
            simulated.as_of_s += passed_s

    def _meter(self, now_s: float) -> None:
        passed_s = 0.0 if math.isinf(self._now_s) else now_s - self._now_s
        for gpu in range(len(self.energy_j)):
            self.energy_j[gpu] += self._physics.power_w(gpu) * passed_s
        self._now_s = max(self._now_s, now_s)

    def _rate(self, run: str) -> float:
        """Return the seconds of work that a run does in a second."""
        simulated, job = self.runs[run], self._jobs[run]
        if simulated.paused or not (simulated.began and simulated.whole):
            return 0.0
        alone = self._state.speed[self._state.machines.model[job.gpus[0]]][job.workload]
        return self._speed * alone / self._physics.slowdown(job)

    def _occupy(self, run: str) -> None:
        job = self._jobs[run]
        for gpu in job.gpus:
            self._state.residents[gpu].append(job)

    def _vacate(self, run: str) -> None:
        job = self._jobs[run]
        for gpu in job.gpus:
            if job in self._state.residents[gpu]:
                self._state.residents[gpu].remove(job)

    # Runs in the words of policies, which the physics speaks.

    def _of(self, run: Run) -> Workload:
        return self._state.workloads[self._workload[run.spec.workload]]

    def _program(self, run: Run) -> Program:
        return Program.of(run.spec, self._of(run))

    def _start_of(self, run: str) -> Start:
        job = self._jobs[run]
        return Start(job, job.gpus, job.shares, job.mode)

    def _job(self, run: Run) -> Job:
        workload = self._workload[run.spec.workload]
        sizes = [mode.sub_batch for mode in self._state.modes[workload]]
        return Job(
            number=0,
            id=run.id,
            workload=workload,
            workers=len(run.seats),
            work_s=self._programs[run.id].work_s,
            arrival_s=0.0,
            gpus=tuple(self._gpu[seat.gpu] for seat in run.seats),
            shares=tuple(seat.share for seat in run.seats),
            mode=sizes.index(run.sub_batch) if run.sub_batch in sizes else 0,
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
