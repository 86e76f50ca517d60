"""Many runs of one setup, policies times seeds, in parallel processes; each is kept on disk.

A run that is there already is not run again: its folder is named after all that decides what
comes out, and appears when it is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from inspect import getsourcefile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.simulation.beliefs import Model
from dovetail.executor.simulation.pool import SimulatedPool
from dovetail.executor.simulation.results import RunResult, prepare, remove_unfinished
from dovetail.executor.simulation.setup import Scenario, Setup
from dovetail.instances._json import json_text
from dovetail.instances.errors import DovetailError, InputError, source_name
from dovetail.instances.files import read_bytes
from dovetail.solver.outside import own_traceback
from dovetail.solver.policies import class_named, policy_label, policy_named

_LOCK_FILE: Final = ".lock"
_ROOMS: Final = ("executor", "formulations", "instances", "predictors", "solver")
"""The sub-packages whose code decides what comes out of a run."""


class Task(NamedTuple):
    """A policy, as it is named with its options, and a seed."""

    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{policy_label(self.policy)}, seed {self.seed}"


class Failure(NamedTuple):
    """A task that came to nothing, and why in one line."""

    task: Task
    reason: str


Told = Callable[[str, int, int], None]
"""Takes what was done last, how much is done and how much there is."""


@dataclass(frozen=True, eq=False)
class Campaign:
    """Policies and seeds of one setup.

    Attributes
    ----------
    setup : Setup
        What is simulated.
    policies : tuple of str
        With their options, as in ``policy_named``.
    seeds : tuple of int
        Every policy is run for each.
    folder : Path
        Where runs are kept, in its folder ``runs``.
    """

    setup: Setup
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    folder: Path

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Every run, seed by seed."""
        return tuple(Task(policy, seed) for seed in self.seeds for policy in self.policies)

    @cached_property
    def setup_digest(self) -> str:
        """What tells this setup from all others, whatever its policies and seeds."""
        setup = self.setup
        parts = (setup.trace, setup.draws, setup.beliefs, setup.options)
        digest = hashlib.sha256("\n".join(map(repr, parts)).encode())
        digest.update(json_text(setup.world.to_data()).encode())
        if isinstance(setup.beliefs, Model):
            digest.update(read_bytes(setup.beliefs.path))
        return digest.hexdigest()

    @cached_property
    def _code(self) -> dict[str, str]:
        """Digest of the code of each policy. A copy in another process has it from this one."""
        return {policy: f"{code_digest()}{_own_code(policy)}" for policy in self.policies}

    def fingerprint(self, task: Task) -> str:
        """Return what tells a run from all others: equal ones come to the same.

        The code that decides a run is part of it: after a change runs are made anew.
        """
        text = f"{self._code[task.policy]}\n{task.policy}\n{task.seed}\n{self.setup_digest}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def folder_of(self, task: Task) -> Path:
        """Return the folder of a run."""
        name = re.sub(r"[^A-Za-z0-9.=-]+", "_", task.policy)[:60]
        return self.folder / "runs" / f"{name}-seed-{task.seed}-{self.fingerprint(task)}"

    def is_done(self, task: Task) -> bool:
        """Tell whether a run is there."""
        try:
            found = RunResult.read(self.folder_of(task), tables=False)
        except InputError:
            return False
        return found.fingerprint == self.fingerprint(task)

    def results(self, tables: bool = True) -> list[RunResult]:
        """Return the runs that are there, policy by policy; see `RunResult.read`."""
        done = sorted(filter(self.is_done, self.tasks), key=self._policy_first)
        return [self._read(self.folder_of(task), tables) for task in done]

    def _read(self, folder: Path, tables: bool) -> RunResult:
        try:
            return RunResult.read(folder, tables)
        except InputError as error:
            rule = f"{error}: delete the folder {source_name(folder)}, and the run is made anew"
            raise InputError(rule) from None

    def run(self, processes: int = 1, told: Told | None = None) -> list[Failure]:
        """Run what is not there yet; return what failed.

        Parameters
        ----------
        processes : int
            So many at a time. A process imports what it needs itself, so that the caller's main
            module has to be importable without side effects.
        told : callable, optional
            Is told of every run that has ended.

        Raises
        ------
        InputError, UnsupportedError
            Before anything is run: when a policy is unknown, the trace does not fit the world, or
            the folder cannot be written or is being written by another campaign.
        KeyboardInterrupt
            With all processes ended and every run there whole or not at all.
        """
        for policy in self.policies:
            policy_named(policy)
        with _alone(self.folder):
            return self._run_alone(processes, told)

    def _run_alone(self, processes: int, told: Told | None) -> list[Failure]:
        left = [task for task in self.tasks if not self.is_done(task)]
        for task in left:
            prepare(self.folder_of(task))
        if not left:
            return []
        worker = _Worker(self)
        require_possible(worker.scenario(left[0].seed))
        progress = _Progress(told, len(self.tasks), len(self.tasks) - len(left))
        try:
            if min(processes, len(left)) == 1:
                return [
                    Failure(task, reason)
                    for task in left
                    if (reason := progress.after(task, worker.run(task)))
                ]
            return self._run_parallel(left, min(processes, len(left)), progress)
        finally:
            for task in left:
                remove_unfinished(self.folder_of(task))

    def _run_parallel(
        self, left: Sequence[Task], processes: int, progress: _Progress
    ) -> list[Failure]:
        failures = []
        with _processes(self, processes) as pool:
            tasks: dict[Future[str], Task] = {pool.submit(_run_here, task): task for task in left}
            for future in as_completed(tasks):
                reason = progress.after(tasks[future], _reason_of(future))
                if reason:
                    failures.append(Failure(tasks[future], reason))
        return failures

    def _policy_first(self, task: Task) -> tuple[int, int]:
        return self.policies.index(task.policy), self.seeds.index(task.seed)


@cache
def code_digest() -> str:
    """Return what tells the sources of this package, but for commands and reports, from others."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        folder = Path(str(files(f"dovetail.{room}")))
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{room}/{file.relative_to(folder)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _own_code(policy: str) -> str:
    """Return what tells the module of a policy from outside the package from others."""
    source = getsourcefile(class_named(policy))
    return hashlib.sha256(read_bytes(source)).hexdigest() if source else ""


def require_possible(scenario: Scenario) -> None:
    """Refuse a trace that its world can never run.

    Raises
    ------
    InputError
        With the first job that cannot.
    """
    SimulatedPool(scenario.trace, scenario.world, scenario.predicted, scenario.options)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other campaigns out of the folder; the system lets go of it even if we are killed.

    Two at once would clear away what the other has not finished.
    """
    place = folder / _LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = place.open("w")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be written: {reason}", "", source_name(folder)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            rule = "another comparison is running in this folder: wait, or name a new one"
            raise InputError(rule, "", source_name(folder)) from None
        yield


class _Progress:
    """Counts runs that have ended."""

    def __init__(self, told: Told | None, total: int, done: int) -> None:
        self._told = told
        self._total = total
        self._done = done

    def after(self, task: Task, reason: str) -> str:
        self._done += 1
        if self._told:
            self._told(str(task), self._done, self._total)
        return reason


class _Worker:
    """Runs tasks one after the other; draws the scenario of a seed once for all policies."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._drawn: dict[int, Scenario] = {}

    def run(self, task: Task) -> str:
        """Run a task and keep the result; return why it failed, or nothing."""
        campaign = self._campaign
        try:
            scenario = self.scenario(task.seed)
            history = scenario.simulate(policy_named(task.policy))
            fingerprint = campaign.fingerprint(task)
            label = policy_label(task.policy)
            result = RunResult.of(label, task.seed, history, scenario.trace, fingerprint)
            result.write(campaign.folder_of(task))
        except DovetailError as error:
            return str(error)
        except Exception as error:
            if os.environ.get("DOVETAIL_DEBUG"):
                raise
            what = f"{type(error).__name__}: {error}"
            own = own_traceback(error, [task.policy])
            if own:
                return f"{what} ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})"
            return f"internal error, please report it: {what}"
        return ""

    def scenario(self, seed: int) -> Scenario:
        if seed not in self._drawn:
            self._drawn = {seed: self._campaign.setup.scenario(seed)}
        return self._drawn[seed]


_here: _Worker | None = None
"""Of a process of a campaign."""


def _run_here(task: Task) -> str:
    if _here is None:
        raise RuntimeError("not a process of a campaign")
    return _here.run(task)


def _begin(campaign: Campaign) -> None:
    """Make a process ready for tasks, and let it end at once with an interrupt or its parent."""
    global _here
    _here = _Worker(campaign)
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(1))
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def _processes(campaign: Campaign, count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes, none of which outlives the block."""
    others = set(multiprocessing.active_children())
    # multiprocessing offers no option that keeps the current directory out of a child's path.
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    pool = ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(campaign,)
    )
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _reason_of(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return "its process was killed, by the system if memory ran out: try fewer at a time"
