"""Finds nodes in pilots, which are Slurm allocations in which Ray is started.

Slurm only provides nodes and starts Ray on them, which joins a head on the service's machine.
Everything else uses Ray, so jobs keep running if ``slurmctld`` or a ``slurmd`` dies.

The address and the secrets of the head are files in the service's directory, which must be on a
file system that all nodes share.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import secrets
import shlex
import socket
import subprocess
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.cluster.caller import no_answer
from dovetail.cluster.messages import Method
from dovetail.cluster.options import RayPlan, SlurmPlan
from dovetail.cluster.ray_finder import ClusterReport, NodeInfo, RayFinder
from dovetail.cluster.slurm.commands import (
    COMMAND_S,
    Allocation,
    SlurmError,
    allocation,
    controller,
    slurm,
)
from dovetail.cluster.slurm.programs import ERROR, program
from dovetail.cluster.slurm.ray_parts import (
    RESOURCE,
    address_towards,
    environment,
    make_secrets,
)
from dovetail.executor.system.clock import boot_s
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import read_data, write_data
from dovetail.instances.reading.contents import write_text
from dovetail.toolkit.commands import host_and_port

DRAIN_S: Final = 600.0
"""Seconds before a pilot's end at which it stops taking new jobs and the next is submitted; at most
a quarter of its time limit."""

RELEASE_S: Final = 45.0
"""Seconds before a pilot's end at which it is released: leases lapse, and jobs end in time."""

_SETTLE_S: Final = 10.0
_CHECK_S: Final = 2.0
_SHORT_S: Final = 3.0
_LEAST_AGAIN_S: Final = 5.0
_MOST_AGAIN_S: Final = 600.0
_STEADY_S: Final = 300.0
_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 20
_LINE_BYTES: Final = 4096
_FLAG: Final = "--pool"
_SCRIPT: Final = """
while :; do
    n=$(squeue -h -j "$SLURM_JOB_ID" -o %D) && srun --nodes="$n" --ntasks="$n" {step}
    sleep 5
done
"""
_RELEASED: Final = "its pilot is over or has been released"

_log = logging.getLogger(__name__)


class _Kept(Record):
    """The file of the pilots that are not over, oldest first, and the name of the agents."""

    name: Name
    pilots: tuple[Name, ...] = ()


class _Pilot:
    """A pilot and its state.

    Attributes
    ----------
    known : Allocation or None
        Its last known allocation.
    leaving : str
        Why it takes no new jobs, empty if it does.
    used_s : float
        When it was last needed, or last seen before its start.
    requeued : bool
        Whether it is over only because Slurm has requeued it.
    seen : frozenset of str
        Its nodes that have ever joined Ray.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.known: Allocation | None = None
        self.leaving = ""
        self.used_s = boot_s()
        self._ends_s = self._retired_s = math.inf
        self.requeued = self._taken = False
        self.seen: frozenset[str] = frozenset()

    def look(self, within_s: float = COMMAND_S) -> Allocation | None:
        """Update the allocation from Slurm, and return it, or None once it is over."""
        had_nodes = self.known is not None and self.known.running
        found = allocation(self.job, within_s)
        self.known = found or self.known
        if found is None or found.ending or (had_nodes and not found.running):
            self._taken = True
            self.leaving = self.leaving or f"its pilot {self.job} was taken back"
        return found

    def is_over(self) -> bool:
        """Update the state from Slurm, and return whether it is over or has been requeued."""
        found = self.look()
        self.requeued = found is not None and self._taken and not found.ending
        if found is None or self.requeued:
            return True
        if not found.running:
            self.used_s = boot_s()
        left_s = found.left_s if found.running else None
        self._ends_s = math.inf if left_s is None else boot_s() + left_s
        if self.drained and not self.leaving:
            at = time.strftime("%H:%M", time.localtime(time.time() + (left_s or 0)))
            self.leaving = f"its pilot {self.job} ends at {at}"
        return False

    def retire(self) -> None:
        """Stop giving it new jobs, so that it can be cancelled once it has no jobs."""
        self._retired_s = boot_s()
        self.leaving = self.leaving or f"its pilot {self.job} was idle"

    @property
    def retired(self) -> bool:
        """Whether it may be cancelled: a job that had been placed on it would be known by now."""
        return boot_s() > max(self._retired_s, self.used_s) + _SETTLE_S

    @property
    def was_retired(self) -> bool:
        """Whether ``retire`` was called."""
        return self._retired_s < math.inf

    @property
    def drained(self) -> bool:
        """Whether it no longer takes new jobs."""
        limit_s = self.known.limit_s if self.known else None
        drain_s = max(RELEASE_S, min(DRAIN_S, (limit_s or 0.0) / 4))
        return self.was_retired or boot_s() > self._ends_s - drain_s

    @property
    def released(self) -> bool:
        """Whether it is released or has no nodes; an ending pilot still reports."""
        without = self.known is not None and not (self.known.running or self.known.ending)
        return without or boot_s() > self._ends_s - RELEASE_S

    def takes_back(self, node: str) -> bool:
        """Return whether Slurm reports within a short time that it or a node was taken back."""
        try:
            found = self.look(_SHORT_S)
        except SlurmError:
            return False
        return found is None or not found.running or node not in found.nodes

    def awaited(self) -> Sequence[str]:
        """Return its nodes that Ray has not named yet, or itself if it has none."""
        if self.known is None:
            return [] if self.seen else [f"pilot {self.job}"]
        if not self.known.running:
            why = "" if self.known.reason == "None" else f": {self.known.reason}"
            return [f"pilot {self.job} ({self.known.state}{why})"]
        return [] if self.released else [node for node in self.known.nodes if node not in self.seen]


class SlurmFinder(RayFinder):
    """Submits pilots, and finds the nodes of the Ray cluster in them.

    A pilot that ends, fails or is cancelled is replaced. A restarted service takes over the pilots
    of the previous one.

    Parameters
    ----------
    directory : path
        The service's state directory, on a file system that all nodes share.
    options : SlurmPlan
        The options of the pool.
    """

    name = "slurm"

    def __init__(self, directory: Path, options: SlurmPlan) -> None:
        self._files = directory / "slurm"
        self._files.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._options = options
        self._kept = self._read()
        self._pilots = [_Pilot(job) for job in self._kept.pilots]
        self._lacking, self._busy = 0, frozenset[str]()
        self._over: dict[str, tuple[float, str]] = {}
        self._again_s, self._submitted_s = 0.0, 0.0
        self._head = self._place_of_head()
        make_secrets(self._files)
        # No check for an open cluster is needed: this head requires its own token.
        plan = RayPlan(address=self._head, pool=options.pool, resource=RESOURCE, open=True)
        env = environment(self._files, self._files, host_and_port(self._head)[0])
        super().__init__(directory / "nodes", plan, env)

    def start(self) -> None:
        """Start the head and submit a pilot; nodes join later.

        If agents are known from an earlier service, it does not wait for Slurm, as their leases
        might lapse.

        Raises
        ------
        SlurmError
            When Slurm refuses, or does not answer.
        UnsupportedError
            When the allocation is over, or Ray is not installed.
        """
        self.begin()
        self._keep_head()
        job = self._options.job
        known = self._kept.pilots and self.had_nodes()
        if not known or job not in (None, *self._kept.pilots):
            if job is not None and allocation(job) is None:
                raise UnsupportedError(f"Slurm has no allocation {job}; it may be over")
            if job is not None and job not in self._kept.pilots:
                self._add(job)
            self._check_pilots()
        threading.Thread(target=self._follow, name="watches pilots", daemon=True).start()

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Call the agent of a node, unless its pilot has been released."""
        info = self._nodes.get(node)
        if info is not None and self._pilot_of(info) is None:
            return no_answer(_RELEASED)
        return super().call(node, method, text)

    def nodes(self) -> Mapping[str, NodeInfo]:
        """Return the nodes of Ray's last report whose pilots are not released."""
        found = ((node, info, self._pilot_of(info)) for node, info in self._nodes.items())
        return {node: info._replace(leaving=pilot.leaving) for node, info, pilot in found if pilot}

    def _pilot_of(self, info: NodeInfo) -> _Pilot | None:
        with self._lock:
            found = (pilot for pilot in self._pilots if pilot.job == info.pilot)
            return next((pilot for pilot in found if not pilot.released), None)

    def _take_in(self, report: ClusterReport) -> None:
        super()._take_in(report)
        with self._lock:
            for pilot in self._pilots:
                named = (node for node, info in report.nodes.items() if info.pilot == pilot.job)
                pilot.seen = pilot.seen.union(named)

    def taken_back(self, node: str) -> str:
        """Return why Slurm most likely ended a rank that has just failed, empty if it did not.

        Slurm signals every process of a pilot when it takes nodes back.
        """
        with self._lock:
            over_s, job = self._over.get(node, (-RELEASE_S, ""))
            pilots = [pilot for pilot in self._pilots if node in pilot.seen]
        if boot_s() < over_s + RELEASE_S:
            return f"its pilot {job} was taken back"
        if pilots and all(pilot.takes_back(node) for pilot in pilots):
            return f"its pilot {pilots[-1].job} was taken back"
        return ""

    def awaited(self) -> Sequence[str]:
        """Return the pilots that have not started, and the nodes of others that have not joined."""
        with self._lock:
            pilots = [*self._pilots]
        awaited = [self._with_failure(pilot, what) for pilot in pilots for what in pilot.awaited()]
        more = self._options.pilots[1] - max(self._options.pilots[0], len(pilots))
        if more > 0:
            awaited.append(f"{more} more pilot{'' if more == 1 else 's'}, when jobs lack devices")
        return awaited

    def _with_failure(self, pilot: _Pilot, awaited: str) -> str:
        """Return an awaited node with the last error of its program, if that has failed."""
        nodes = pilot.known.nodes if pilot.known else ()
        if awaited not in nodes:
            return awaited
        log = self._files / f"pilot-{pilot.job}-{nodes.index(awaited)}.log"
        with suppress(OSError), log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LINE_BYTES))
            *_, last = ["", *file.read().decode(errors="replace").splitlines()]
            if last.startswith(ERROR):
                return f"{awaited} ({last.removeprefix(ERROR)})"
        return awaited

    def weigh(self, lacking: int, busy: Collection[str]) -> None:
        """Set how many devices waiting jobs lack, and which nodes have runs."""
        self._lacking, self._busy = lacking, frozenset(busy)

    # The head.

    def _place_of_head(self) -> str:
        """Return the address of the head: the previous one, unless this is another machine."""
        path, host = self._files / "head", self._options.head
        with suppress(OSError, ValueError, ArgumentTypeError):
            known = path.read_text().strip()
            if host in (None, host_and_port(known)[0]) and _is_ours(host_and_port(known)[0]):
                return known
        host = host or address_towards(controller())
        ports = (secrets.choice(_PORTS) for _ in range(_TRIES))
        port = next((port for port in ports if _is_ours(host, port)), None)
        if port is None:
            raise InputError("head must be an address of this machine", _FLAG, host)
        write_text(path, f"{host}:{port}\n")
        return f"{host}:{port}"

    def _keep_head(self) -> None:
        """Start the program of the head if it does not run."""
        self._start_detached("head", [*program("head", self._files), "--address", self._head])

    # Pilots.

    def _follow(self) -> None:
        while not self._closing.wait(_CHECK_S):
            try:
                self._keep_head()
                self._check_pilots()
            except SlurmError as error:
                _log.warning("pilots: %s", error)
            except Exception:  # without this thread, no pilot would ever be replaced
                _log.exception("pilots cannot be checked")

    def _check_pilots(self) -> None:
        """Check all pilots, submit or cancel some, or start the step of an allocation."""
        for pilot in [*self._pilots]:
            if pilot.is_over():
                _log.warning("pilot %s is over", pilot.job)
                if not pilot.was_retired and boot_s() < self._submitted_s + _STEADY_S:
                    self._wait_longer()
                self._drop(pilot)
                if pilot.requeued:
                    self._add(pilot.job)
        if self._options.job is None:
            self._grow_or_shrink()
            return
        if not self._pilots:
            _log.warning("allocation %s is over: there are no nodes", self._options.job)
        for pilot in self._pilots:
            if pilot.known is not None and pilot.known.running:
                job, nodes = pilot.job, len(pilot.known.nodes)
                step = ("srun", f"--jobid={job}", f"--nodes={nodes}", f"--ntasks={nodes}")
                self._start_detached(f"pilot-{job}", [*step, *self._step()])

    def _grow_or_shrink(self) -> None:
        """Adjust the number of pilots to the jobs, within the limits, one submission at a time."""
        for pilot in self._pilots:
            runs = not self._busy.isdisjoint(pilot.seen)
            if runs or (self._lacking and not pilot.drained):
                pilot.used_s = boot_s()
        taking = [pilot for pilot in self._pilots if not pilot.drained]
        least, most = self._options.pilots
        short = self._lacking > 0 and not any(pilot.awaited() for pilot in taking)
        if len(taking) < least or (short and len(taking) < most):
            self._submit()
        for pilot in taking[least:]:
            if boot_s() > pilot.used_s + self._options.idle_s:
                pilot.retire()
        for pilot in self._pilots:
            if pilot.retired:
                _log.info("pilot %s was idle: cancelled", pilot.job)
                slurm("scancel", pilot.job)

    def _submit(self) -> None:
        """Submit a pilot, with growing pauses after refusals and pilots that ended early."""
        if boot_s() < self._submitted_s + self._again_s:
            return
        again_s = 0.0 if boot_s() > self._submitted_s + _STEADY_S else self._again_s
        self._submitted_s = boot_s()
        self._wait_longer()
        job = slurm(
            *("sbatch", "--parsable", "--job-name=dovetail", "--no-kill", "--ntasks-per-node=1"),
            *(f"--output={self._files}/pilot-%j.log", "--open-mode=append"),
            *self._options.options,
            f"--wrap={_SCRIPT.format(step=shlex.join(self._step()))}",
            within_s=60.0,
        )
        self._again_s = again_s
        self._add(job.strip().partition(";")[0])
        self._pilots[-1].is_over()

    def _wait_longer(self) -> None:
        self._again_s = min(max(_LEAST_AGAIN_S, 2 * self._again_s), _MOST_AGAIN_S)

    def _step(self) -> Sequence[str]:
        """Return the arguments of ``srun`` that run the program of a node on each node of a pilot.

        With them, the step continues without a node that fails.
        """
        scratch = ("--scratch", self._options.scratch) if self._options.scratch else ()
        return (
            *("--job-name=dovetail-nodes", "--overlap", "--ntasks-per-node=1", "--no-kill"),
            *("--kill-on-bad-exit=0", "--cpu-bind=none", "--input=none", "--quiet"),
            *(f"--output={self._files}/pilot-%j-%n.log", "--open-mode=append"),
            *program("node", self._files),
            *("--name", self._kept.name, "--pool", self._options.pool, *scratch),
        )

    def _start_detached(self, name: str, command: Sequence[str]) -> None:
        """Start a program that outlives the service, unless it runs already and holds its lock."""
        lock = os.open(self._files / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with (self._files / f"{name}.log").open("ab") as log:
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[lock],
                )
        except BlockingIOError:
            pass
        finally:
            os.close(lock)

    # The file of the pilots.

    def _add(self, job: str) -> None:
        with self._lock:
            self._pilots.append(_Pilot(job))
        self._keep()

    def _drop(self, pilot: _Pilot) -> None:
        with self._lock:
            self._pilots.remove(pilot)
            self._over |= dict.fromkeys(pilot.seen, (boot_s(), pilot.job))
        self._keep()

    def _keep(self) -> None:
        self._kept = self._kept.replace(pilots=tuple(pilot.job for pilot in self._pilots))
        write_data(self._kept.to_data(), self._files / "pilots.json")

    def _read(self) -> _Kept:
        path = self._files / "pilots.json"
        if path.exists():
            return _Kept.from_data(read_data(path), str(path))
        kept = _Kept(name=secrets.token_hex(4))
        write_data(kept.to_data(), path)
        return kept


def _is_ours(host: str, port: int = 0) -> bool:
    """Return whether an address belongs to this machine, and the port is free."""
    with suppress(OSError), socket.socket() as one:
        one.bind((host, port))
        return True
    return False
