"""Many runs of one setup, policies times seeds, in parallel processes; results stay on disk.

A run that exists is not repeated: the name of its folder has a digest of everything that determines
the outcome, and the folder appears only when the run is complete.
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
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from inspect import getsourcefile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.simulation.beliefs import Model
from dovetail.executor.simulation.results import RunResult, prepare, remove_unfinished
from dovetail.executor.simulation.setup import Scenario, Setup
from dovetail.instances.errors import DovetailError, InputError, source_name
from dovetail.instances.plugins import plugins
from dovetail.instances.reading.contents import read_bytes
from dovetail.instances.reading.json_text import json_text
from dovetail.solver.outside import own_traceback
from dovetail.solver.policies.registry import class_named, policy_label, policy_named

_LOCK_FILE: Final = ".lock"
_FOLDERS: Final = ("executor", "formulations", "instances", "predictors", "solver")
"""The sub-packages of the core whose code determines the outcome of a run."""

_BELIEVED: Final = ("form", "power", "predictor")
"""The kinds of plugins whose code determines what policies believe."""


class Task(NamedTuple):
    """A policy (name and options) and a seed."""

    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{policy_label(self.policy)}, seed {self.seed}"


class TaskFailure(NamedTuple):
    """A task that failed, and the reason in one line."""

    task: Task
    reason: str


Report = Callable[[str, int, int], None]
"""Called with the name of the last task that ended, the number of ended tasks and of all."""


@dataclass(frozen=True, eq=False)
class SimulationCampaign:
    """Policies and seeds of one setup.

    Attributes
    ----------
    setup : Setup
        The setup to simulate.
    policies : tuple of str
        Policies with their options, as in ``policy_named``.
    seeds : tuple of int
        Every policy is run with each of these seeds.
    folder : Path
        Runs are stored in its subfolder ``runs``.
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
        """A digest of the setup, independent of policies and seeds."""
        setup = self.setup
        drawn = (setup.gslas, setup.workloads, setup.sample)
        parts = (setup.trace, drawn, setup.beliefs, setup.options)
        digest = hashlib.sha256("\n".join(map(repr, parts)).encode())
        for column in vars(setup.trace.columns).values():
            digest.update(repr(column.tolist()).encode())
        digest.update(json_text(setup.world.to_data()).encode())
        if isinstance(setup.beliefs, Model):
            digest.update(read_bytes(setup.beliefs.path))
        return digest.hexdigest()

    @cached_property
    def _code(self) -> dict[str, str]:
        """Digest of the code of each policy; other processes get it with the campaign."""
        return {policy: f"{code_digest()}{_own_code(policy)}" for policy in self.policies}

    def fingerprint(self, task: Task) -> str:
        """Return a digest of everything that determines the outcome of a run, the code included."""
        text = f"{self._code[task.policy]}\n{task.policy}\n{task.seed}\n{self.setup_digest}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def folder_of(self, task: Task) -> Path:
        """Return the folder of a run."""
        name = re.sub(r"[^A-Za-z0-9.=-]+", "_", task.policy)[:60]
        return self.folder / "runs" / f"{name}-seed-{task.seed}-{self.fingerprint(task)}"

    def is_done(self, task: Task) -> bool:
        """Return whether a run exists."""
        try:
            found = RunResult.read(self.folder_of(task), tables=False)
        except InputError:
            return False
        return found.fingerprint == self.fingerprint(task)

    def results(self, tables: bool = True) -> list[RunResult]:
        """Return the runs that exist, policy by policy; see `RunResult.read`."""
        done = [Task(policy, seed) for policy in self.policies for seed in self.seeds]
        done = [task for task in done if self.is_done(task)]
        return [self._read(self.folder_of(task), tables) for task in done]

    def _read(self, folder: Path, tables: bool) -> RunResult:
        try:
            return RunResult.read(folder, tables)
        except InputError as error:
            rule = f"{error}: delete the folder {source_name(folder)} to repeat the run"
            raise InputError(rule) from None

    def run(self, processes: int = 1, report: Report | None = None) -> list[TaskFailure]:
        """Run the tasks whose results do not exist yet; return those that failed.

        Parameters
        ----------
        processes : int
            Number of runs at a time. Each process does its own imports, so the caller's main
            module must be importable without side effects.
        report : callable, optional
            Called after every run.

        Raises
        ------
        InputError, UnsupportedError
            Before any run, if a policy is unknown, the trace does not fit the world, or the
            folder cannot be written or is in use by another campaign.
        KeyboardInterrupt
            After all processes have ended; every run is complete or absent.
        """
        for policy in self.policies:
            policy_named(policy)
        with _alone(self.folder):
            left = [task for task in self.tasks if not self.is_done(task)]
            for task in left:
                prepare(self.folder_of(task))
            if left:
                _scenario(self, left[0].seed).require_possible()
            failures = []
            try:
                ended = enumerate(self._run_all(left, processes), len(self.tasks) - len(left) + 1)
                for count, (task, reason) in ended:
                    if report:
                        report(str(task), count, len(self.tasks))
                    if reason:
                        failures.append(TaskFailure(task, reason))
            finally:
                for task in left:
                    remove_unfinished(self.folder_of(task))
            return failures

    def _run_all(self, tasks: Sequence[Task], processes: int) -> Iterator[tuple[Task, str]]:
        """Run tasks; yield each as it ends, with the reason if it failed ("" if it did not)."""
        processes = min(processes, len(tasks))
        if processes <= 1:
            yield from ((task, self.run_one(task)) for task in tasks)
            return
        with _processes(self, processes) as pool:
            futures = {pool.submit(_run_here, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], _reason_of(future)

    def run_one(self, task: Task) -> str:
        """Run a task and store the result; return why it failed, or "" if it did not."""
        try:
            scenario = _scenario(self, task.seed)
            history = scenario.simulate(policy_named(task.policy))
            fingerprint = self.fingerprint(task)
            label = policy_label(task.policy)
            result = RunResult.of(label, task.seed, history, scenario.trace, fingerprint)
            result.write(self.folder_of(task))
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


@lru_cache(maxsize=1)
def _scenario(campaign: SimulationCampaign, seed: int) -> Scenario:
    """Return the scenario of a seed, drawn once for all policies."""
    return campaign.setup.scenario(seed)


@cache
def code_digest() -> str:
    """Return a digest of the sources that any run may use: of the core and of predictors."""
    digest = hashlib.sha256()
    for name in _FOLDERS:
        folder = Path(str(files(f"dovetail.{name}")))
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{name}/{file.relative_to(folder)}\n".encode())
            digest.update(file.read_bytes())
    added = {plugin.module for kind in _BELIEVED for plugin in plugins(kind).values()}
    for module in sorted(added):
        digest.update(f"{module}\n{_digest_beside(module, _source_of(module))}\n".encode())
    return digest.hexdigest()


def _own_code(policy: str) -> str:
    """Return a digest of the module of a policy and of those beside it."""
    made = class_named(policy)
    return _digest_beside(made.__module__, getsourcefile(made))


def _source_of(module: str) -> str | None:
    """Return the source of a module, which is not imported; None if it cannot be found."""
    try:
        found = find_spec(module)
    except Exception:  # whatever its package does when it is imported; an error where it is used
        return None
    return found.origin if found and found.has_location else None


def _digest_beside(module: str, source: str | None) -> str:
    """Return a digest of a module, or of all modules of its package if it has one."""
    if not source:
        return ""
    beside = Path(source).parent.glob("*.py") if "." in module else [Path(source)]
    return hashlib.sha256(b"".join(map(read_bytes, map(str, sorted(beside))))).hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder: two campaigns would remove each other's unfinished runs.

    The system releases the lock even if this process is killed.
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


_here: SimulationCampaign | None = None
"""The campaign whose tasks this process runs."""


def _run_here(task: Task) -> str:
    assert _here is not None
    return _here.run_one(task)


def _begin(campaign: SimulationCampaign) -> None:
    """Prepare a process for tasks; it ends immediately on an interrupt or when its parent ends."""
    global _here
    _here = campaign
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(1))
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def _processes(campaign: SimulationCampaign, count: int) -> Iterator[ProcessPoolExecutor]:
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
