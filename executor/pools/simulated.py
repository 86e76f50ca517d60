"""The simulated pool: runs on a simulated cluster in real time, without any process.

To the service it is a pool like any other, so the service and its interfaces can be tried and
tested with any cluster. It survives the service: runs are saved in a file, and after a restart they
have progressed as if the service had been running.
"""

from __future__ import annotations

import math
import shlex
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from dovetail.executor.gpus.splits import Splits
from dovetail.executor.jobs.events import (
    AnyEvent,
    RankEnded,
    RankGone,
    RankReady,
    RankRefused,
    RankStarted,
)
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.made_up_shares import SimulatedProgram, made_up_gate
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.runs.room import RunRoom
from dovetail.executor.pools.share_gate import ShareGate
from dovetail.executor.pools.simulated_runs import Program, SimulatedRun
from dovetail.executor.simulation.cluster import FINISH, FIRST_KIND, SimulatedCluster
from dovetail.executor.simulation.history import JobTimes
from dovetail.executor.system.clock import boot_id, boot_s
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.reading.contents import write_text
from dovetail.instances.slowdowns.shares import caps_of
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import Job

_FILE: Final = "simulated.json"
_PAST: Final = "it ran before, and only its logs are left"
_LONGEST_WAIT_S: Final = 3600.0
_BEGIN, _KILL = FIRST_KIND, FIRST_KIND + 1
_SIGTERM, _SIGKILL = 15, 9
_OUT_OF_MEMORY: Final = 1
_Seen = TypeVar("_Seen", RankStarted, RankReady, RankRefused, RankGone)


@dataclass
class _Saved:
    """The content of the file.

    ``boot`` is the boot id of the clock that the runs' times use; ``checkpoints`` has the seconds
    of work of each stopped job up to its last checkpoint.
    """

    boot: str
    runs: list[SimulatedRun] = field(default_factory=list)
    checkpoints: dict[str, float] = field(default_factory=dict)


_SAVED: TypeAdapter[_Saved] = TypeAdapter(_Saved)


class SimulatedNode:
    """A pool with simulated devices, jobs and figures (a ``NodePool``).

    Jobs have workloads of the instance, whose slowdowns are used; a job that does not fit into the
    free memory ends with status 1. Its command is not run, but words in it (``work_s=30``,
    ``status=1``, ``rank=0``, ``deaf=1``) define what it does (``simulated_runs.Program``). A job
    with checkpoints (``JobSpec.checkpoint_s``) resumes from its last one.

    Parameters
    ----------
    directory : path
        The directory of ``simulated.json`` and the logs.
    truth : Instance
        Cluster, workloads and the true slowdowns; its jobs are ignored.
    speed : float
        Seconds of work that a job does per second, alone on a GPU of speed 1.
    start_s : float
        Seconds from the start of a rank until it is ready.
    boot_s : callable
        Returns seconds since the machine booted.
    made_up : Splits, optional
        Made-up evidence: only shares that it has are used, and the service can measure others.

    Raises
    ------
    InputError
        When the file of an earlier service cannot be read.
    """

    name: str = "simulated"
    awaited = ""
    reserves = False
    trouble = ""

    def __init__(
        self,
        directory: str | Path,
        truth: Instance,
        speed: float = 1.0,
        start_s: float = 0.0,
        boot_s: Callable[[], float] = boot_s,
        made_up: Splits | None = None,
    ) -> None:
        self.notice = f"simulated from the instance {truth.name}: no process runs"
        self._directory = Path(directory)
        self._room = RunRoom(self._directory / "runs")
        self._truth = truth
        self._speed = speed
        self._start_s = start_s
        self._boot_s = boot_s
        self._cluster = SimulatedCluster(truth)
        self._workload = {name: k for k, name in enumerate(truth.workloads)}
        self._runs: dict[str, SimulatedRun] = {}
        self._jobs: dict[str, Job] = {}
        self._names: list[str] = []
        self._checkpoints: dict[str, float] = {}
        self._news: list[AnyEvent] = []
        self._awaited: dict[str, Run] = {}
        self._alarm = _WakeTimer(boot_s)
        self.gate: ShareGate | None = None
        if made_up is not None and truth.workloads:
            shares, name = caps_of(truth.cluster.shares), next(iter(truth.workloads))
            self.gate = made_up_gate(made_up, shares, SimulatedProgram(), name)
            self.notice += "; the evidence of shares is made up"

    def lack(self, devices: int) -> None:
        """Do nothing: there are no more devices."""

    def cluster(self) -> Cluster:
        """Return the instance's cluster."""
        if self.gate is None:
            return self._truth.cluster
        cluster = self._truth.cluster
        models = {gpu.model for node in cluster.nodes for gpu in node.devices}
        known = self.gate.allowed_anywhere(models)
        shares = tuple(share for share in cluster.shares if share in known)
        return cluster.model_copy(update={"shares": shares})

    def sharing(self, same_user: bool) -> str | None:
        """Return None: any two users may share."""
        return None

    def library(self, run: Run) -> str:
        """Return an empty text: shares of a simulation depend on no library."""
        return ""

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares of the instance, or those with made-up evidence."""
        if self.gate is not None:
            return self.gate.allowed(library, model)
        return caps_of(self.cluster().shares)

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call as soon as ``poll`` has something to report."""
        self._alarm.wake = wake
        self._set_alarm()

    def next_s(self) -> float:
        """Return when the next event may happen, in seconds since boot; infinity for never."""
        return -math.inf if self._news else self._cluster.next_s()

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Resume the runs of the file, and return the runs that are not in ``runs``."""
        saved = self._load()
        self._awaited = {run.id: run for run in runs}
        if saved.boot != boot_id():
            # Nothing outlives the machine.
            saved.runs = []
        self._checkpoints = saved.checkpoints
        for simulated in saved.runs:
            self._add(simulated)
            self._note_start(simulated.run)
        self._advance()
        self._news = [event for one in self._runs.values() for event in one.events()]
        for run in runs:
            if self._is_past(run):
                self._news += _of_ranks(RankGone, run, reason=_PAST)
        self._set_alarm()
        return [old.run for old in saved.runs if old.run.id not in self._awaited]

    def prelaunch(self, run: Run) -> None:
        """Do nothing: a start takes no preparation."""

    def launch(self, run: Run) -> None:
        """Start a run that has no trace yet."""
        self._awaited[run.id] = run
        if run.id in self._runs:
            return
        if self._is_past(run):
            self._news += _of_ranks(RankGone, run, reason=_PAST)
        elif refusal := self._refusal(run):
            self._news += _of_ranks(RankRefused, run, reason=refusal)
        elif failure := self._start(run):
            self._news += _of_ranks(RankRefused, run, reason=failure, later=True)
        self._set_alarm()

    def stop(self, run: str, grace_s: float) -> None:
        """Ask a run to end; report it as refused if it was never started."""
        if run in self._runs:
            self._advance()
            self._ask_to_end(self._runs[run], grace_s)
            self._save()
        elif run in self._awaited:
            reason = "stopped before it was started"
            self._news += _of_ranks(RankRefused, self._awaited[run], reason=reason)
        self._set_alarm()

    def pause(self, run: str, on: bool) -> None:
        """Suspend or resume a run; a suspended run still slows its co-runners down."""
        if run in self._runs:
            self._advance()
            self._runs[run].paused = on
            self._hold(self._runs[run])
            self._save()
        self._set_alarm()

    def release(self, run: str) -> None:
        """Forget a run that is over; its logs stay."""
        self._awaited.pop(run, None)
        simulated = self._runs.get(run)
        if simulated is not None and not simulated.alive:
            del self._runs[run], self._jobs[run]
            self._save()

    def poll(self) -> Sequence[AnyEvent]:
        """Return the events since the last call."""
        if self._advance():
            self._save()
        news, self._news = self._news, []
        self._set_alarm()
        return news

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return the progress of each rank, equal for all because they wait for each other."""
        self._advance()
        self._set_alarm()
        if run not in self._runs:
            return ()
        job, now_s = self._jobs[run], self._cluster.state.now
        per_s = self._cluster.state.workloads[job.workload].throughput.get(100, 1.0)
        return [Progress(job.done(now_s) * per_s, now_s, job.work_s * per_s)] * job.workers

    def usage(self) -> Mapping[str, Usage]:
        """Return memory, energy and, for a single resident, metrics of each device."""
        self._advance()
        self._set_alarm()
        return {gpu: self._usage(k) for k, gpu in enumerate(self._truth.places)}

    def log_path(self, run: str, rank: int) -> str | None:
        """Return a rank's log, which says that it is simulated."""
        path = self._log_file(run, rank)
        return str(path) if path.exists() else None

    def log_lack(self, run: str, rank: int) -> str:
        """Return an empty text: logs are read where they are written."""
        return ""

    def prune(self, keep_s: float) -> None:
        """Remove the logs of runs that ended longer ago."""
        self._room.make(keep_s, self._runs.__contains__)

    def close(self) -> None:
        """Stop waking the service; the runs continue."""
        self._alarm.wake = None
        self._alarm.set(math.inf)

    # From runs to jobs on the cluster.

    def _refusal(self, run: Run) -> str:
        """Return why a run cannot be simulated; empty if it can."""
        if run.spec.workload not in self._workload:
            known = ", ".join(self._workload)
            return f"the instance has no workload {run.spec.workload!r}, only {known}"
        elsewhere = [seat.gpu for seat in run.seats if seat.gpu not in self._truth.places]
        if elsewhere:
            return f"the instance has no GPU {elsewhere[0]!r}"
        try:
            self._program(run)
        except InputError as error:
            return str(error)
        return ""

    def _start(self, run: Run) -> str:
        """Start a run; return why it could not be saved, empty if it was."""
        self._advance()
        now_s = self._cluster.state.now
        statuses: list[int | None] = [None] * len(run.seats)
        from_s = self._checkpoints.get(run.job, 0.0)
        self._add(
            SimulatedRun(run, now_s + self._start_s, 0.0, now_s, statuses=statuses, from_s=from_s)
        )
        try:
            self._write()
        except InputError as error:
            del self._runs[run.id], self._jobs[run.id]
            return str(error)
        self._report(_of_ranks(RankStarted, run))
        return ""

    def _add(self, simulated: SimulatedRun) -> None:
        """Add a new run, or one as it was saved."""
        run, state = simulated.run, self._cluster.state
        job = Job(
            number=len(self._names),
            id=run.id,
            workload=self._workload[run.spec.workload],
            workers=len(run.seats),
            work_s=self._program(run).work_s - simulated.from_s,
            arrival_s=0.0,
            done_s=simulated.done_s,
        )
        self._names.append(run.id)
        self._runs[run.id], self._jobs[run.id] = simulated, job
        state.now = max(state.now, simulated.as_of_s)
        if simulated.kill_s is not None:
            self._cluster.push(simulated.kill_s, _KILL, job.number)
        if not simulated.began:
            self._cluster.push(simulated.begins_s, _BEGIN, job.number)
        elif simulated.alive:
            self._place(simulated)

    def _place(self, simulated: SimulatedRun) -> None:
        start = self._start_of(simulated.run)
        state = self._cluster.state
        alone = state.speed[state.machines.model[start.gpus[0]]][start.job.workload]
        self._cluster.place(start, JobTimes(start.job.work_s), self._speed * alone)
        self._hold(simulated)

    def _start_of(self, run: Run) -> Start:
        job, state = self._jobs[run.id], self._cluster.state
        sizes = [mode.sub_batch for mode in state.modes[job.workload]]
        return Start(
            job,
            tuple(state.machines.number[seat.gpu] for seat in run.seats),
            tuple(seat.share for seat in run.seats),
            sizes.index(run.sub_batch) if run.sub_batch in sizes else 0,
        )

    def _hold(self, simulated: SimulatedRun) -> None:
        job = self._jobs[simulated.run.id]
        if job.phase == "running":
            self._cluster.pause(job, simulated.stands_still)

    def _program(self, run: Run) -> Program:
        return Program.of(run.spec, self._truth.workloads[run.spec.workload])

    # What happens.

    def _advance(self) -> bool:
        """Advance the cluster's clock to the present; return whether there were events."""
        before = len(self._news)
        now_s = max(self._boot_s(), self._cluster.state.now)
        for kind, number, _ in self._cluster.advance(now_s):
            simulated = self._runs.get(self._names[number])
            if simulated is not None and simulated.alive:
                self._happens(simulated, kind)
        return len(self._news) > before

    def _happens(self, simulated: SimulatedRun, kind: int) -> None:
        if kind == FINISH:
            program = self._program(simulated.run)
            self._end(simulated, program.status, program.rank)
        elif kind == _KILL:
            self._end(simulated, -_SIGKILL)
        elif self._cluster.obstacles(self._start_of(simulated.run)):
            self._end(simulated, _OUT_OF_MEMORY)
        else:
            simulated.began = True
            self._place(simulated)
            self._report(_of_ranks(RankReady, simulated.run))

    def _ask_to_end(self, simulated: SimulatedRun, grace_s: float) -> None:
        """Ask a run to end; if it ignores that, kill it after its grace."""
        if not self._program(simulated.run).deaf:
            self._end(simulated, -_SIGTERM)
            return
        kill_s = self._cluster.state.now + grace_s
        if simulated.kill_s is None or kill_s < simulated.kill_s:
            simulated.kill_s = kill_s
            self._cluster.push(kill_s, _KILL, self._jobs[simulated.run.id].number)

    def _end(self, simulated: SimulatedRun, status: int, only: int | None = None) -> None:
        """End all ranks that still run, or only the given one."""
        run, statuses = simulated.run.id, simulated.statuses
        ranks = range(len(statuses)) if only is None else [only]
        ended = [rank for rank in ranks if statuses[rank] is None]
        for rank in ended:
            statuses[rank] = status
        job = self._jobs[run]
        if simulated.alive:
            self._hold(simulated)
        elif job.phase == "running":
            gpus = job.gpus
            self._cluster.remove(job)
            self._cluster.renew_rates(gpus)
            self._keep(simulated, job, statuses[0] == -_SIGTERM)
        self._report(RankEnded(at_s=0.0, run=run, rank=rank, status=status) for rank in ended)

    def _keep(self, simulated: SimulatedRun, job: Job, asked: bool) -> None:
        """Keep the work of a run that is over up to its last checkpoint, if its job has any."""
        run, every_s = simulated.run, simulated.run.spec.checkpoint_s
        self._checkpoints.pop(run.job, None)
        if every_s is not None and job.done_s < job.work_s:
            saved_s = job.done_s - job.done_s % every_s if every_s else job.done_s * asked
            self._checkpoints[run.job] = simulated.from_s + saved_s

    def _usage(self, gpu: int) -> Usage:
        state = self._cluster.state
        memory = {job.id: state.used_mib(gpu, [job]) for job in state.residents[gpu]}
        energy_j = self._cluster.energy_j(gpu)
        return Usage(
            state.now,
            sum(memory.values()),
            None if math.isnan(energy_j) else energy_j,
            _metrics([state.workloads[job.workload] for job in state.residents[gpu]]),
            "simulated",
            memory,
        )

    def _report(self, happened: Iterable[AnyEvent]) -> None:
        for event in happened:
            self._news.append(event)
            self._log(event)

    def _set_alarm(self) -> None:
        self._alarm.set(self.next_s())

    def _is_past(self, run: Run) -> bool:
        """Return whether only logs of a run exist: it was released, or the machine rebooted."""
        return run.id not in self._runs and self._log_file(run.id, 0).exists()

    # Files.

    def _load(self) -> _Saved:
        path = self._directory / _FILE
        try:
            return _SAVED.validate_json(path.read_bytes())
        except FileNotFoundError:
            return _Saved(boot_id())
        except (OSError, ValidationError):
            raise InputError("must be the file of a simulated pool", "", str(path)) from None

    def _save(self) -> None:
        """Write the file if possible: everything except starts can be reconstructed."""
        with suppress(InputError):
            self._write()

    def _write(self) -> None:
        now_s = self._cluster.state.now
        for run, simulated in self._runs.items():
            simulated.done_s, simulated.as_of_s = self._jobs[run].done(now_s), now_s
        saved = _Saved(boot_id(), list(self._runs.values()), self._checkpoints)
        write_text(self._directory / _FILE, _SAVED.dump_json(saved).decode())

    def _log_file(self, run: str, rank: int) -> Path:
        return self._directory / "runs" / run / f"rank{rank}" / "log"

    def _note_start(self, run: Run) -> None:
        """Log a start if the service was killed between the start and its log line."""
        for started in _of_ranks(RankStarted, run):
            log = self._log_file(run.id, started.rank)
            if not (log.exists() and log.stat().st_size):
                self._log(started)

    def _log(self, event: AnyEvent) -> None:
        if event.kind == "rank_started":
            command = shlex.join(self._runs[event.run].run.spec.command)
            line = f"started, not run: {command}"
        elif event.kind == "rank_ended":
            line = f"ended with status {event.status}"
        else:
            return
        path = self._log_file(event.run, event.rank)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"simulated: {line}\n")


class _WakeTimer:
    """Calls ``wake`` at the time that was set last, from a separate thread."""

    def __init__(self, boot_s: Callable[[], float]) -> None:
        self._boot_s = boot_s
        self.wake: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None

    def set(self, at_s: float) -> None:
        """Schedule ``wake`` for ``at_s`` instead of the earlier time; infinity for never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.wake is None or (math.isinf(at_s) and at_s > 0):
            return
        wait_s = min(max(0.0, at_s - self._boot_s()), _LONGEST_WAIT_S)
        self._timer = threading.Timer(wait_s, self.wake)
        self._timer.daemon = True
        self._timer.start()


def _metrics(residents: Sequence[Workload]) -> Mapping[str, float]:
    """Return the solo metrics of a GPU's only resident; empty if there are several."""
    if len(residents) != 1 or residents[0].metrics is None:
        return {}
    return residents[0].metrics.model_dump(exclude_none=True)


def _of_ranks(kind: type[_Seen], run: Run, **fields: object) -> list[_Seen]:
    """Return an event of this kind for each rank of a run; the service sets ``at_s``."""
    common = {"at_s": 0.0, "run": run.id, **fields}
    return [kind.model_validate({**common, "rank": rank}) for rank in range(len(run.seats))]
