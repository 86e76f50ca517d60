"""The simulated pool: runs that take their time and slow each other, and no process at all.

It is a pool like any other to the service, on the machine's own clock, so that the service and
its faces can be tried and tested with any cluster. It survives the service: what runs is kept in
a file, and a service that comes back finds it as far on as if it had been there.
"""

from __future__ import annotations

import math
import shlex
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from dovetail.executor.jobs.events import AnyEvent, RankGone, RankRefused, RankStarted
from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools._simulation import SimulatedRun, Simulation
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.run_files import remove_old
from dovetail.executor.system.clock import boot_id, boot_s
from dovetail.instances.errors import InputError
from dovetail.instances.files import write_text
from dovetail.instances.instance import Cluster, Instance

_FILE: Final = "simulated.json"
_PAST: Final = "it ran before, and nothing is left of it"
_LONGEST_WAIT_S: Final = 3600.0


@dataclass
class _Saved:
    """What the file holds; ``boot`` is the kernel's boot id, and its clock that of the runs."""

    boot: str
    runs: list[SimulatedRun] = field(default_factory=list)


_SAVED: TypeAdapter[_Saved] = TypeAdapter(_Saved)


class SimulatedNode:
    """A pool whose devices, jobs and figures are all simulated (a ``NodePool``).

    A job's workload is one of the instance's, and says with its entries how fast it runs beside
    whom; memory that does not suffice ends the newcomer with status 1. Its command is not
    carried out, but its words ``work_s=30``, ``status=1``, ``rank=0`` and ``deaf=1`` say what it
    does (``_simulation.Program``).

    Parameters
    ----------
    directory : path
        Where it keeps ``simulated.json`` and the logs.
    truth : Instance
        Cluster, workloads and the true slowdowns; its jobs are not read.
    speed : float
        Seconds of work that a job alone does in a second: all durations are divided by it, all
        rates are multiplied.
    start_s : float
        Seconds from the start of a rank until it is ready.
    boot_s : callable
        Returns seconds since the machine booted.

    Raises
    ------
    InputError
        When the file of an earlier service cannot be read.
    """

    name: str = "simulated"
    awaited = ""
    trouble = ""

    def __init__(
        self,
        directory: str | Path,
        truth: Instance,
        speed: float = 1.0,
        start_s: float = 0.0,
        boot_s: Callable[[], float] = boot_s,
    ) -> None:
        self.notice = f"simulated from the instance {truth.name}: no process runs"
        self._directory = Path(directory)
        self._truth = truth
        self._start_s = start_s
        self._boot_s = boot_s
        self._simulation = Simulation(truth, speed)
        self._news: list[AnyEvent] = []
        self._awaited: dict[str, Run] = {}
        self._alarm = _Alarm(boot_s)

    def lack(self, devices: int) -> None:
        """Do nothing: there are no more devices."""

    def cluster(self) -> Cluster:
        """Return the instance's cluster."""
        return self._truth.cluster

    def sharing(self, first: Run, second: Run) -> str | None:
        """Return None: any two may share."""
        return None

    def library(self, run: Run) -> str:
        """Return nothing: every share of a simulation computes right."""
        return ""

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares of the instance."""
        return self.cluster().shares

    def attach(self, wake: Callable[[], None]) -> None:
        """Set what to call as soon as there is something to tell."""
        self._alarm.wake = wake
        self._changed()

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Take up what runs, and return what runs beyond ``runs``."""
        saved = self._load()
        self._awaited = {run.id: run for run in runs}
        if saved.boot != boot_id():
            # Nothing outlives the machine.
            saved.runs = []
        for simulated in saved.runs:
            self._simulation.add(simulated)
            self._note_start(simulated.run)
        self._log(self._simulation.advance(self._boot_s()))
        for simulated in self._simulation.runs.values():
            self._news += simulated.events()
        for run in runs:
            if self._is_past(run):
                self._news += _gone(run, _PAST)
        self._changed()
        return [old.run for old in saved.runs if old.run.id not in self._awaited]

    def launch(self, run: Run) -> None:
        """Start a run that has no trace yet."""
        self._awaited[run.id] = run
        if run.id in self._simulation.runs:
            return
        if self._is_past(run):
            self._news += _gone(run, _PAST)
        elif refusal := self._simulation.refusal(run):
            self._news += _refused(run, refusal)
        elif unkept := self._start(run):
            self._news += _refused(run, unkept, later=True)
        self._changed()

    def stop(self, run: str, grace_s: float) -> None:
        """Ask a run to end; one that was never started is told as refused."""
        if run in self._simulation.runs:
            now_s = self._boot_s()
            happened = self._simulation.advance(now_s)
            self._tell(happened + self._simulation.stop(run, now_s, grace_s))
            self._save()
        elif run in self._awaited:
            self._news += _refused(self._awaited[run], "stopped before it was started")
        self._changed()

    def pause(self, run: str, on: bool) -> None:
        """Let a run stand still, or go on; those beside it are slowed as before."""
        if run in self._simulation.runs:
            self._tell(self._simulation.advance(self._boot_s()))
            self._simulation.pause(run, on)
            self._save()
        self._changed()

    def release(self, run: str) -> None:
        """Forget a run that is over; its logs stay."""
        self._awaited.pop(run, None)
        simulated = self._simulation.runs.get(run)
        if simulated is not None and not simulated.alive:
            self._simulation.remove(run)
            self._save()

    def poll(self) -> Sequence[AnyEvent]:
        """Return what has happened since the last call."""
        happened = self._simulation.advance(self._boot_s())
        if happened:
            self._tell(happened)
            self._save()
        news, self._news = self._news, []
        self._changed()
        return news

    def progress(self, run: str) -> Sequence[Progress | None]:
        """Return how far each rank is: the same for all, as they wait for each other."""
        self._tell(self._simulation.advance(self._boot_s()))
        self._changed()
        simulated = self._simulation.runs.get(run)
        if simulated is None:
            return ()
        return [self._simulation.progress(run)] * len(simulated.statuses)

    def usage(self) -> Mapping[str, Usage]:
        """Return memory, energy and the metrics of a device's only resident, as the truth says."""
        at_s = self._boot_s()
        self._tell(self._simulation.advance(at_s))
        self._changed()
        return {gpu: self._used(gpu, at_s) for gpu in self._truth.places}

    def log_path(self, run: str, rank: int) -> str | None:
        """Return a rank's log, which says that it is simulated."""
        path = self._log_file(run, rank)
        return str(path) if path.exists() else None

    def prune(self, keep_s: float) -> None:
        """Remove the logs of runs that ended longer ago."""
        remove_old(self._directory / "runs", keep_s, self._simulation.runs.__contains__)

    def close(self) -> None:
        """Tell nobody any more; what runs runs on."""
        self._alarm.wake = None
        self._alarm.set(math.inf)

    def _is_past(self, run: Run) -> bool:
        """Tell whether nothing but its logs is left of a run: it was released, or a reboot came."""
        return run.id not in self._simulation.runs and self._log_file(run.id, 0).exists()

    def _start(self, run: Run) -> str:
        """Start a run; return why it could not be made to last, empty where it was."""
        now_s = self._boot_s()
        self._tell(self._simulation.advance(now_s))
        statuses: list[int | None] = [None] * len(run.seats)
        begins_s = now_s + self._start_s
        self._simulation.add(SimulatedRun(run, begins_s, 0.0, now_s, statuses=statuses))
        try:
            self._write()
        except InputError as error:
            self._simulation.remove(run.id)
            return str(error)
        started = [RankStarted(at_s=0.0, run=run.id, rank=k) for k in range(len(statuses))]
        self._tell(started)
        return ""

    def _used(self, gpu: str, at_s: float) -> Usage:
        memory = self._simulation.memory_mib(gpu)
        energy_j = self._simulation.energy_j(gpu)
        return Usage(
            at_s,
            sum(memory.values()),
            None if math.isnan(energy_j) else energy_j,
            self._simulation.metrics(gpu),
            "simulated",
            memory,
        )

    def _tell(self, happened: Sequence[AnyEvent]) -> None:
        self._news += happened
        self._log(happened)

    def _changed(self) -> None:
        """Have the service woken when there is something to tell."""
        self._alarm.set(-math.inf if self._news else self._simulation.next_s())

    # Files.

    def _load(self) -> _Saved:
        path = self._directory / _FILE
        try:
            return _SAVED.validate_json(path.read_bytes())
        except FileNotFoundError:
            return _Saved(boot_id())
        except (OSError, ValidationError):
            raise InputError("is no file of a simulated pool", "", str(path)) from None

    def _save(self) -> None:
        """Write the file if that is possible: all but starts can be worked out again."""
        try:
            self._write()
        except InputError:
            return

    def _write(self) -> None:
        self._simulation.settle()
        saved = _Saved(boot_id(), list(self._simulation.runs.values()))
        write_text(self._directory / _FILE, _SAVED.dump_json(saved).decode())

    def _log_file(self, run: str, rank: int) -> Path:
        return self._directory / "runs" / run / f"rank{rank}" / "log"

    def _note_start(self, run: Run) -> None:
        """Log a start that the service before was killed at, before its log had a line."""
        for rank in range(len(run.seats)):
            log = self._log_file(run.id, rank)
            if not (log.exists() and log.stat().st_size):
                self._log([RankStarted(at_s=0.0, run=run.id, rank=rank)])

    def _log(self, happened: Sequence[AnyEvent]) -> None:
        for event in happened:
            if event.kind == "rank_started":
                command = shlex.join(self._simulation.runs[event.run].run.spec.command)
                self._append(event.run, event.rank, f"simulated: started, not run: {command}")
            elif event.kind == "rank_ended":
                line = f"simulated: ended with status {event.status}"
                self._append(event.run, event.rank, line)

    def _append(self, run: str, rank: int, line: str) -> None:
        path = self._log_file(run, rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{line}\n")
        except OSError:
            return


class _Alarm:
    """Calls ``wake`` at the moment that was set last, from a thread of its own."""

    def __init__(self, boot_s: Callable[[], float]) -> None:
        self._boot_s = boot_s
        self.wake: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None

    def set(self, at_s: float) -> None:
        """Have ``wake`` called at ``at_s`` and not before; infinity for never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.wake is None or (math.isinf(at_s) and at_s > 0):
            return
        wait_s = min(max(0.0, at_s - self._boot_s()), _LONGEST_WAIT_S)
        self._timer = threading.Timer(wait_s, self.wake)
        self._timer.daemon = True
        self._timer.start()


def _gone(run: Run, reason: str) -> list[AnyEvent]:
    ranks = range(len(run.seats))
    return [RankGone(at_s=0.0, run=run.id, rank=rank, reason=reason) for rank in ranks]


def _refused(run: Run, reason: str, later: bool = False) -> list[AnyEvent]:
    ranks = range(len(run.seats))
    return [
        RankRefused(at_s=0.0, run=run.id, rank=rank, reason=reason, later=later) for rank in ranks
    ]
