"""The jobs of a fault campaign, a client that retries any service, and the verdict.

Every rank records its start: ``run rank`` in a log of its pool (simulated), or in a file that it
opens for appending itself (real processes). The verdict rests on that file and on the journal,
not on anything that the service reports about itself.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from invariants import violations
from service_process import LONGEST_S, POINTS, ServiceGoneError, ServiceProcess, Setup

from dovetail.executor.jobs.journal import read_state_machine
from dovetail.executor.jobs.specs import JobSpec, Owner
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import OVER, JobState
from dovetail.executor.live.errors import BusyError
from dovetail.instances.instance import Instance

ME = Owner(name="campaign", uid=os.geteuid(), gid=os.getegid())
_GRACE_S = 0.2
_LONG_S = 3600.0
_LIGHT = {"sm_active": 0.3, "sm_occupancy": 0.2, "dram_active": 0.2, "gpu_util": 0.4}
_LOOK_S = 0.02


@dataclass(frozen=True)
class Deed:
    """What a job does, and what must become of it.

    Attributes
    ----------
    name : str
        Of the job, unlike any other's.
    work_s : float
        Seconds it takes.
    status : int
        What it ends with.
    deaf : bool
        Whether it ignores SIGTERM.
    cancel : str
        In which state the client cancels it: ``queued``, ``running`` or never (empty).
    ends : tuple of JobState
        How it may end.
    starts : tuple of int
        How often it may be started at least and at most.
    fields : dict
        Of its specification.
    """

    name: str
    work_s: float
    ends: tuple[JobState, ...] = (JobState.FINISHED,)
    starts: tuple[int, int] = (1, 1)
    status: int = 0
    deaf: bool = False
    cancel: str = ""
    fields: dict[str, object] = field(default_factory=dict)


def deeds(brief_s: float) -> tuple[Deed, ...]:
    """Return one job of each kind: together they pass through every transition but losses."""
    cancelled = (JobState.CANCELLED,)
    return (
        Deed("brief", brief_s),
        Deed("watched", 8 * brief_s),
        Deed("gang", brief_s, fields={"workers": 2}),
        Deed("fails", brief_s, (JobState.FAILED,), (2, 2), status=3, fields={"retries": 1}),
        Deed("endless", _LONG_S, cancelled, cancel="running"),
        Deed("deaf", _LONG_S, cancelled, deaf=True, cancel="running"),
        Deed("late", _LONG_S, (JobState.FAILED,), fields={"walltime_s": 3 * brief_s}),
        Deed(
            "regretted", brief_s, (JobState.CANCELLED, JobState.FINISHED), (0, 1), cancel="queued"
        ),
    )


CommandOf = Callable[[Deed], tuple[str, ...]]


def simulated_command(deed: Deed) -> tuple[str, ...]:
    """Return the words that a simulated pool reads."""
    return ("simulate", f"work_s={deed.work_s}", f"status={deed.status}", f"deaf={int(deed.deaf)}")


_SCRIPT = """\
[ "$4" = 0 ] || trap '' TERM
echo "$DOVETAIL_RUN $DOVETAIL_RANK" >> "$1"
sleep "$2"
exit "$3"
"""


_UNTIL = """\
echo "$DOVETAIL_RUN $DOVETAIL_RANK" >> "$1"
until [ -e "$2" ]; do sleep 0.1; done
"""


@dataclass(frozen=True)
class UntilCommand:
    """Makes jobs that are real processes, note their starts, and end well once a file is there."""

    starts: Path
    file: Path

    def __call__(self, deed: Deed) -> tuple[str, ...]:
        """Return the shell's arguments."""
        return ("sh", "-c", _UNTIL, "sh", str(self.starts), str(self.file))


@dataclass(frozen=True)
class ShellCommand:
    """Makes jobs that are real processes and note their starts in a file."""

    starts: Path

    def __call__(self, deed: Deed) -> tuple[str, ...]:
        """Return the shell's arguments."""
        words = (str(self.starts), str(deed.work_s), str(deed.status), str(int(deed.deaf)))
        return ("sh", "-c", _SCRIPT, "sh", *words)


def spec_of(deed: Deed, command: CommandOf, workload: str = "A") -> JobSpec:
    """Return what is submitted."""
    return JobSpec(
        command=command(deed),
        workload=workload,
        owner=ME,
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        name=deed.name,
        grace_s=_GRACE_S,
        **deed.fields,  # type: ignore[arg-type]
    )


class StuckError(Exception):
    """Jobs are not over in time."""


class Client:
    """Submits each deed once, cancels as they say, and starts the service again when it is gone.

    Parameters
    ----------
    setup : Setup
        Of the service.
    deeds : sequence of Deed
        Names must differ.
    command : callable
        From a deed to its command.
    kills : iterable of int
        The ``kill_at`` of each service that is started; none is killed once it is exhausted.

    Attributes
    ----------
    acknowledged : dict of str to str
        The ids of the jobs that the service said it has, by name.
    deaths : int
        Services that were killed.
    """

    def __init__(
        self, setup: Setup, deeds: Sequence[Deed], command: CommandOf, kills: Iterable[int] = ()
    ) -> None:
        self.acknowledged: dict[str, str] = {}
        self.deaths = 0
        self.setup = setup
        self._deeds = {deed.name: deed for deed in deeds}
        self._command = command
        self._kills: Iterator[int] = iter(kills)
        self._cancelled: set[str] = set()
        self.service = self._start()

    def settle(self, within_s: float = LONGEST_S) -> None:
        """Go on until every job is over, and let the service end.

        Raises
        ------
        StuckError
            When that takes too long; it names the jobs.
        """
        until = time.monotonic() + within_s
        while not self.step():
            if time.monotonic() > until:
                self.service.kill()
                raise StuckError(self._left())
            time.sleep(_LOOK_S)
        self.service.stop()

    def step(self) -> bool:
        """Do what there is to do now; tell whether every job is over."""
        try:
            return self.ask_for_all()
        except BusyError:
            return False
        except ServiceGoneError:
            self.restart()
            return False

    def ask_for_all(self) -> bool:
        """Do as ``step`` does, and raise what it bears.

        Raises
        ------
        BusyError, ServiceGoneError
        """
        self._submit_missing()
        self._cancel_due()
        views = self.service.ask("jobs", True)
        states = {view.name: view.state for view in views}
        return all(states.get(name) in OVER for name in self._deeds)

    def restart(self) -> None:
        """Start the service again after it has died, or kill it before."""
        self.service.kill()
        self.deaths += 1
        self.service = self._start()

    def begin_anew(self) -> None:
        """Forget what was acknowledged and cancelled: the journal may have forgotten it too."""
        self.acknowledged.clear()
        self._cancelled.clear()
        self.restart()

    def add(self, deed: Deed) -> None:
        """Have one job more."""
        self._deeds[deed.name] = deed

    def _start(self) -> ServiceProcess:
        return ServiceProcess(replace(self.setup, kill_at=next(self._kills, 0)))

    def _submit_missing(self) -> None:
        """Submit what is not there: what was not acknowledged may be there all the same."""
        if set(self.acknowledged) == set(self._deeds):
            return
        there = {view.name: view.id for view in self.service.ask("jobs", True)}
        for name, deed in self._deeds.items():
            if name in self.acknowledged:
                continue
            if name not in there:
                (there[name],) = self.service.ask("submit", [spec_of(deed, self._command)], ME)
            self.acknowledged[name] = there[name]

    def _cancel_due(self) -> None:
        for view in self.service.ask("jobs"):
            deed = self._deeds[view.name]
            due = deed.cancel == "queued" or (
                deed.cancel and view.state in ("running", "profiling")
            )
            if due and view.name not in self._cancelled:
                self.service.ask("cancel", view.id, ME)
                self._cancelled.add(view.name)

    def _left(self) -> str:
        machine = read_state_machine(self.setup.directory)
        lines = [
            f"{job.id} {job.spec.name}: {_past(machine, job.id)}" for job in machine.jobs.values()
        ]
        return "\n".join(["not every job is over:", *lines])


def _past(machine: StateMachine, job: str) -> str:
    return "; ".join(f"{step.state} ({step.why})" for step in machine.jobs[job].history)


# The verdict.


def verdict(
    directory: Path,
    acknowledged: Mapping[str, str],
    deeds: Sequence[Deed],
    starts: Sequence[str],
    forgetful: bool = False,
) -> list[str]:
    """Return what is wrong after all is over; nothing is, if the list is empty.

    ``forgetful``: the journal has lost what it had; a job may then end as it likes, and what was
    forgotten of it may be done once more, as other runs.
    """
    machine = read_state_machine(directory)
    found = [
        f"{name} ({job}) was acknowledged and is lost"
        for name, job in acknowledged.items()
        if job not in machine.jobs
    ]
    names = Counter(job.spec.name for job in machine.jobs.values())
    found += [f"{name} is there {count} times" for name, count in names.items() if count > 1]
    found += [f"rank {line} was started twice" for line, n in Counter(starts).items() if n > 1]
    by_name = {deed.name: deed for deed in deeds}
    for job in machine.jobs.values():
        found += _wrong(by_name[job.spec.name or ""], machine, job.id, starts, forgetful)
    found += [f"journal: {violation}" for violation in violations(machine)]
    return found + [f"process {pid} is an orphan" for pid in left_behind(directory)]


def _wrong(
    deed: Deed, machine: StateMachine, job: str, starts: Sequence[str], forgetful: bool
) -> list[str]:
    live = machine.jobs[job]
    found = []
    if live.state not in (OVER if forgetful else deed.ends):
        found.append(f"{deed.name} ended as {live.state}: {_past(machine, job)}")
    begun = {line.split()[0] for line in starts if line.startswith(f"{job}.")}
    least, most = deed.starts
    if not least <= len(begun) <= most * (1 + forgetful):
        found.append(f"{deed.name} was started {len(begun)} times: {_past(machine, job)}")
    unknown = begun - {f"{job}.{k}" for k in range(1, live.runs + 1)}
    return found + [f"{run} was started, and the journal does not know" for run in unknown]


def simulated_starts(directory: Path) -> list[str]:
    """Return a line ``run rank`` for each start that simulated ranks have in their logs."""
    return [
        f"{log.parents[1].name} {log.parent.name}"
        for log in sorted(directory.glob("runs/*/rank*/log"))
        for line in log.read_text().splitlines()
        if "started" in line
    ]


def noted_starts(file: Path) -> list[str]:
    """Return the lines that real ranks have written."""
    return file.read_text().splitlines() if file.exists() else []


def left_behind(directory: Path) -> list[int]:
    """Return processes of jobs or of shims that still run for this state directory."""
    mark = str(directory)
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
            ours = "DOVETAIL_RUN" in process.environ()
        except psutil.Error:
            continue
        if ours and any(mark in word for word in words):
            found.append(process.pid)
    return found


def points_of(directory: Path) -> list[str]:
    """Return the points that the services passed, each with ``passed`` or ``died``."""
    return (directory / POINTS).read_text().splitlines()


def truth() -> Instance:
    """Return two simulated GPUs, and a workload that shares well."""
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "two-devices",
            "cluster": {
                "nodes": [
                    {"id": "n0", "gpu_count": 2, "gpu": {"model": "none", "memory_mib": 16000}}
                ]
            },
            "workloads": {
                "A": {"memory_mib": 1000, "metrics": _LIGHT, "throughput": {"100": 100.0}}
            },
            "jobs": [],
            "slowdowns": [{"pair": ["A", "A"], "slowdown": [1.25, 1.25]}],
        }
    )
