"""The service measures shares itself: on an idle device, until a job could start there.

A share that is not known to compute correctly is used by no job. So while a device is idle, the
pool's program measures one share after the other there, each as a run without a job, which the pool
starts, watches and ends like those of jobs. The results go to the repository, where the gate of the
pool finds them. Decisions treat the device as idle: a start on it ends the run first.

``docs/explanation/splits.md`` describes it.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from dovetail.executor.gpus.python_libraries import NoPythonError, libraries_of
from dovetail.executor.gpus.splits import SplitEvidence, Splits, keep_splits, read_splits
from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Command, Launch, Release, StopRun
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.live_jobs import Measuring
from dovetail.executor.jobs.specs import JobSpec, Run, Seat
from dovetail.executor.live.live import Live
from dovetail.executor.live.views import EvidenceView
from dovetail.executor.pools.runs.lease import SHIM_KILL_S
from dovetail.executor.pools.runs.submissions import Submission, last_lines, own_user
from dovetail.executor.pools.share_gate import ShareGate, TriedShare
from dovetail.instances._record import listed
from dovetail.instances.errors import DovetailError

LOOK_S: Final = 600.0
"""Seconds between two looks at what has been measured by others, while nothing is measured."""

_KEPT_VARIABLES: Final = ("LD_LIBRARY_PATH", "PATH")
_LEAVE_S: Final = SHIM_KILL_S + 5.0
_LOOK_AGAIN_S: Final = 0.05

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class OtherLibraryError(DovetailError):
    """A program has compared products of another library."""


@dataclass(frozen=True)
class GatherOptions:
    """How the service measures shares itself.

    Attributes
    ----------
    python : str or None
        A Python with the jobs' PyTorch; None: only those of jobs.
    idle_s : float
        Seconds for which a device must have been idle before.
    patience_s : float or None
        Seconds that a share may take; None: those of the program.
    rest_s, most_rest_s : float
        Seconds until the next try after a failure, doubled with each further one; and the most.
    """

    python: str | None = None
    idle_s: float = 5.0
    patience_s: float | None = None
    rest_s: float = 600.0
    most_rest_s: float = 86_400.0


class _Environment(NamedTuple):
    """A library, and a Python that has it."""

    library: str
    python: str


class _Seen(NamedTuple):
    """What a look has found: evidence, and the given Python's library or why it has none."""

    splits: Splits
    library: str = ""
    lacks: str = ""


class _Next(NamedTuple):
    """A share to measure on a device, with the Python that has the library."""

    gpu: str
    gpu_model: str
    share: int
    library: str
    python: str


@dataclass
class _Under:
    """The run that measures.

    ``begun``: its event was applied. ``launched``, ``asked``: the pool was told to start or to end
    it. ``fault``: why it is stopped, if that is its own fault.
    """

    submission: Submission
    begun: bool = False
    launched: bool = False
    asked: bool = False
    fault: str = ""

    @property
    def run(self) -> Run:
        return self.submission.run


class Gatherer:
    """Measures shares without evidence on idle devices.

    Its methods are called from the service's thread.

    Parameters
    ----------
    live : Live
        What the parts of the service share. Nothing is measured without a state directory, whose
        repository stores the results, nor if the pool has no gate.
    options : GatherOptions or None
        None: nothing is measured.
    """

    def __init__(self, live: Live, options: GatherOptions | None) -> None:
        self._live, self._machine, self._pool = live, live.machine, live.pool
        self._devices, self._directory = live.devices, Path(live.directory)
        self._gate: ShareGate | None = live.pool.gate
        self._options = options or GatherOptions()
        self._on = options is not None and self._gate is not None and bool(live.directory)
        self._under: _Under | None = None
        self._kept: Future[SplitEvidence] | None = None
        self._looking: Future[_Seen] | None = None
        self._seen: _Seen | None = None
        self._looked_s = -math.inf
        self._idle_since: dict[str, float] = {}
        self.next_s = -math.inf if self._on else math.inf

    def close(self) -> None:
        """End the run that measures, before the pool is closed; the next service notes it."""
        under, self._on = self._under, False
        if under is None or not under.launched or under.submission.over:
            return
        until_s = time.monotonic() + _LEAVE_S
        try:
            self._pool.stop(under.run.id, 0.0)
            while not under.submission.over and time.monotonic() < until_s:
                time.sleep(_LOOK_AGAIN_S)
                self.sort(self._pool.poll())
        except Exception:
            _log.exception("the next service ends the run %s", under.run.id)

    # What happens.

    def left_over(self, at_s: float) -> list[AnyEvent]:
        """Return the end of what an earlier service measured; its run ends as a stray."""
        present = self._machine.shares.present
        if present is None:
            return []
        reason = "the service was restarted"
        return [events.MeasuringEnded(at_s=at_s, run=present.run, outcome="stopped", reason=reason)]

    def sort(self, reported: Iterable[AnyEvent]) -> list[AnyEvent]:
        """Note the events of the run that measures, and return all others."""
        ours = self._under.submission if self._under is not None else None
        others = []
        for event in reported:
            if ours is None or getattr(event, "run", "") != ours.run.id:
                others.append(event)
            else:
                ours.note(event)
                self.next_s = -math.inf
        return others

    def due(self, now_s: float) -> list[AnyEvent]:
        """Return what is to happen now: a start, a stop or an end of the measuring of a share."""
        if not self._on:
            return []
        present = self._machine.shares.present
        if present is not None:
            return self._of_present(present, now_s)
        self._look_where_due(now_s)
        self.next_s = math.inf
        chosen = self._chosen(now_s)
        if chosen is None:
            self.next_s = min(self.next_s, self._looked_s + LOOK_S)
            return []
        self.next_s = -math.inf
        return self._begun(chosen, now_s)

    def make_way(self, gpus: Collection[str], now_s: float, who: str) -> list[AnyEvent] | None:
        """Return the events that free devices for a start, or None if none of them is held."""
        present = self._machine.shares.present
        if present is None or self._is_over or present.gpu not in gpus:
            return None
        if present.stopping:
            return []
        reason = f"{who} can start on {present.gpu}"
        return [events.MeasuringStopped(at_s=now_s, run=present.run, reason=reason)]

    def commands(self) -> list[Command]:
        """Return what the pool has to do after the events that were applied."""
        under, present = self._under, self._machine.shares.present
        if under is None:
            return []
        if present is None or present.run != under.run.id:
            if under.begun:
                self._under = None
            return [Release(under.run.id)] if under.begun and under.launched else []
        under.begun = True
        if not under.launched and not present.stopping:
            under.launched = True
            return [Launch(under.run)]
        if present.stopping and under.launched and not under.asked:
            under.asked = True
            return [StopRun(under.run.id, 0.0)]
        return []

    # A share that is being measured.

    @property
    def _is_over(self) -> bool:
        """Whether the present run holds its device no longer."""
        under, present = self._under, self._machine.shares.present
        if under is None or present is None:
            return True
        never = bool(present.stopping) and not under.launched
        return never or bool(under.submission.over)

    def _of_present(self, present: Measuring, now_s: float) -> list[AnyEvent]:
        under = self._under
        if under is None or self._is_over:
            self.next_s = math.inf
            return self._ended(present, now_s)
        deadline_s = present.since_s + self._patience_s
        trouble = self._machine.devices[present.gpu].trouble
        self.next_s = math.inf if present.stopping else deadline_s
        if present.stopping:
            return []
        if now_s >= deadline_s:
            under.fault = f"it did not end within {self._patience_s:g} s"
        reason = under.fault or under.submission.stopped
        if not reason and trouble:
            reason = f"{present.gpu} {trouble}"
        if not reason:
            return []
        return [events.MeasuringStopped(at_s=now_s, run=present.run, reason=reason)]

    @property
    def _patience_s(self) -> float:
        assert self._gate is not None
        assert self._gate.program is not None
        own_s = self._options.patience_s
        return self._gate.program.patience_s if own_s is None else own_s

    def _ended(self, present: Measuring, now_s: float) -> list[AnyEvent]:
        """Return the end of a run that is over; empty while its result is being stored."""
        under = self._under
        if under is not None and under.submission.status == 0 and self._kept is None:
            try:
                found = self._evidence(present, under.submission)
            except DovetailError as error:
                return self._end("failed", str(error), present, now_s)
            self._kept = self._in_background(lambda: self._keep(found))
        if self._kept is not None:
            return self._stored(self._kept, present, now_s)
        fault = under.fault or under.submission.stopped if under is not None else ""
        if present.stopping and not fault:
            return self._end("stopped", present.stopping, present, now_s)
        if under is not None and not fault:
            fault = self._failure(under.submission)
        return self._end("failed", fault or "its run is unknown", present, now_s)

    def _stored(
        self, kept: Future[SplitEvidence], present: Measuring, now_s: float
    ) -> list[AnyEvent]:
        """Return the end of a run with a result, once that is stored."""
        if not kept.done():
            return []
        self._kept = None
        try:
            found = kept.result()
        except Exception as error:
            return self._end("failed", f"the result cannot be stored: {error}", present, now_s)
        if self._gate is not None:
            self._gate.learn(found)
        return self._end("right" if found.passed else "wrong", _result(found), present, now_s)

    def _end(
        self,
        outcome: Literal["right", "wrong", "stopped", "failed"],
        reason: str,
        present: Measuring,
        now_s: float,
    ) -> list[AnyEvent]:
        self.next_s = -math.inf
        if outcome == "stopped":
            self._idle_since.pop(present.gpu, None)
        return [events.MeasuringEnded(at_s=now_s, run=present.run, outcome=outcome, reason=reason)]

    def _failure(self, one: Submission) -> str:
        lines = last_lines(self._pool.log_path(one.run.id, 0))
        last = lines[-1] if one.status is not None and one.status > 0 and lines else one.over
        return f"{one.run.spec.command[0]} could not compute: {last[:200]}"

    def _evidence(self, present: Measuring, one: Submission) -> SplitEvidence:
        assert self._gate is not None
        assert self._gate.program is not None
        sms = next(
            (
                gpu.sms
                for node in self._devices.cluster.nodes
                for gpu in node.devices
                if gpu.id == present.gpu
            ),
            None,
        )
        tried = TriedShare(present.gpu_model, self._gate.driver, present.share, sms)
        lines = last_lines(self._pool.log_path(one.run.id, 0))
        found = self._gate.program.evidence(tried, lines)
        if found.cublas != present.library:
            python = one.run.spec.command[0]
            rule = f"{python} computes with the library {found.cublas}, not {present.library}"
            raise OtherLibraryError(rule)
        return found

    def _keep(self, found: SplitEvidence) -> SplitEvidence:
        keep_splits(self._directory, found)
        return found

    # What to measure next.

    def _look_where_due(self, now_s: float) -> None:
        """Look in the background at the evidence and the given Python, now and then."""
        if self._looking is None and now_s >= self._looked_s + LOOK_S:
            self._looked_s = now_s
            self._looking = self._in_background(self._look)
        if self._looking is not None and self._looking.done():
            done, self._looking = self._looking, None
            try:
                self._seen = done.result()
            except Exception as error:
                _log.warning("no share is measured: %s", error)
                self._seen = self._seen or _Seen(Splits(), lacks=str(error))
                return
            assert self._gate is not None
            self._gate.splits = self._seen.splits

    def _look(self) -> _Seen:
        splits, python = read_splits(self._directory), self._options.python
        if python is None:
            return _Seen(splits)
        try:
            found = libraries_of(python)
        except NoPythonError as error:
            return _Seen(splits, lacks=str(error))
        if found.cublas is None:
            what = "no PyTorch for CUDA" if found.cuda is None else "no cuBLAS beside its PyTorch"
            return _Seen(splits, lacks=f"{python} has {what}")
        return _Seen(splits, found.cublas)

    def _chosen(self, now_s: float) -> _Next | None:
        """Return the next share to measure, if a device is idle for it."""
        gate = self._gate
        if gate is None or gate.program is None or self._seen is None or self._looking:
            return None
        if now_s < self._again_s:
            self.next_s = min(self.next_s, self._again_s)
            return None
        wanted = self._wanted()
        if not wanted:
            return None
        failed = self._machine.shares
        idle = sorted(
            self._idle(now_s, {model for model, _ in wanted}), key=failed.failed_on.__eq__
        )
        for model, environment in sorted(
            wanted, key=lambda one: one[1].library == failed.failed_with
        ):
            gpu = next((gpu for gpu in idle if self._devices.models[gpu] == model), None)
            if gpu is not None:
                share = wanted[model, environment][0]
                return _Next(gpu, model, share, environment.library, environment.python)
        return None

    @property
    def _again_s(self) -> float:
        """When the next try may begin after failures."""
        shares, options = self._machine.shares, self._options
        if not shares.failures:
            return -math.inf
        rest_s = options.rest_s * 2.0 ** min(shares.failures - 1, 60)
        return shares.failed_s + min(rest_s, options.most_rest_s)

    def _environments(self) -> list[_Environment]:
        """Return the libraries that can be measured; the given Python comes first."""
        assert self._gate is not None
        if self._gate.library:
            return [_Environment(self._gate.library, sys.executable)]
        found: dict[str, str] = {}
        if self._seen is not None and self._seen.library and self._options.python:
            found[self._seen.library] = self._options.python
        for library, python in self._machine.shares.pythons.items():
            if os.access(python, os.X_OK):
                found.setdefault(library, python)
        return [_Environment(*one) for one in found.items()]

    def _wanted(self) -> Mapping[tuple[str, _Environment], tuple[int, ...]]:
        """Return the shares without evidence, by device model and library."""
        assert self._gate is not None
        models = dict.fromkeys(self._devices.models.values())
        missing = {
            (model, environment): self._gate.missing(environment.library, model)
            for environment in self._environments()
            for model in models
        }
        return {where: shares for where, shares in missing.items() if shares}

    def _idle(self, now_s: float, models: Collection[str]) -> Iterator[str]:
        """Yield devices of some models that are idle for long enough, the last ones first.

        Policies start jobs on the first idle devices.
        """
        assert self._gate is not None
        residents, left = self._machine.residents(), self._live.left.held
        free = [
            gpu
            for gpu, model in self._devices.models.items()
            if model in models
            and not residents.get(gpu)
            and gpu not in left
            and not self._machine.devices[gpu].trouble
        ]
        self._idle_since = {gpu: self._idle_since.get(gpu, now_s) for gpu in free}
        for gpu in reversed(free):
            since_s = self._idle_since[gpu] + self._options.idle_s
            if now_s < since_s:
                self.next_s = min(self.next_s, since_s)
            elif self._gate.strangers(gpu):
                self._idle_since[gpu] = now_s
                self.next_s = min(self.next_s, now_s + self._options.idle_s)
            else:
                yield gpu

    def _begun(self, what: _Next, now_s: float) -> list[AnyEvent]:
        assert self._gate is not None
        assert self._gate.program is not None
        job = f"shares-{self._machine.sequence + 1}"
        spec = JobSpec(
            command=tuple(self._gate.program.command(what.python)),
            workload=self._gate.workload,
            owner=own_user(),
            cwd="/",
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        )
        run = Run(id=f"{job}.1", job=job, spec=spec, seats=(Seat(gpu=what.gpu, share=what.share),))
        self._under = _Under(Submission(run))
        return [
            events.MeasuringBegun(
                at_s=now_s,
                run=run.id,
                gpu=what.gpu,
                gpu_model=what.gpu_model,
                library=what.library,
                share=what.share,
            )
        ]

    # What users see.

    def view(self) -> EvidenceView | None:
        """Return how far the measuring of shares is; None if shares need no evidence here."""
        gate = self._gate
        if gate is None:
            return None
        if not self._on:
            return EvidenceView(state="off", text="the service measures no shares itself")
        if not gate.enforced:
            return EvidenceView(state="off", text=f"no share is used: {gate.why_not}")
        present = self._machine.shares.present
        if present is not None:
            return self._view_of(present)
        if gate.program is None:
            return EvidenceView(state="lacking", text=f"no share can be measured: {gate.why_not}")
        environments, wanted = self._environments(), self._wanted()
        if not environments:
            return self._view_without_python()
        left = tuple(dict.fromkeys(share for shares in wanted.values() for share in shares))
        failure = self._machine.shares.failure
        if left and failure:
            when = time.strftime("%H:%M", time.localtime(self._again_s))
            text = f"{_percent(left)} not measured, tried again at {when}, after: {failure}"
            return EvidenceView(state="failed", text=text, left=left)
        if left:
            text = f"{_percent(left)} not measured: as soon as a device is idle"
            return EvidenceView(state="waiting", text=text, left=left)
        return EvidenceView(state="done", text="; ".join(self._results(environments)))

    def _view_of(self, present: Measuring) -> EvidenceView:
        missing = self._gate.missing(present.library, present.gpu_model) if self._gate else ()
        left = tuple(share for share in missing if share != present.share)
        then = f", then {_percent(left)}" if left else ""
        how = f"it ends: {present.stopping}" if present.stopping else "it makes way for jobs"
        text = (
            f"measuring whether {present.share} % of {present.gpu} computes right "
            f"({_of(present.library)}; {how}){then}"
        )
        return EvidenceView(
            state="measuring",
            text=text,
            gpu=present.gpu,
            share=present.share,
            library=present.library,
            since_s=present.since_s,
            left=left,
        )

    def _view_without_python(self) -> EvidenceView:
        lacks = self._seen.lacks if self._seen is not None else ""
        known = {
            library for named in self._machine.libraries.values() for library in named.values()
        }
        if self._seen is None:
            text = "looking at what was measured before"
            return EvidenceView(state="waiting", text=text)
        why = lacks or (
            f"no Python of this user is known for the jobs' cuBLAS {listed(sorted(known))}"
            if known
            else "no PyTorch of jobs of this user is known yet"
        )
        return EvidenceView(
            state="lacking", text=f"no share can be measured: {why} (serve --python FILE)"
        )

    def _results(self, environments: Iterable[_Environment]) -> Iterator[str]:
        assert self._gate is not None
        for model in dict.fromkeys(self._devices.models.values()):
            for library, _ in environments:
                right = self._gate.allowed(library, model)
                wrong = self._gate.refused(library, model)
                text = f"{model}, {_of(library)}: {_percent(right) if right else 'no share'} right"
                yield f"{text}, {_percent(wrong)} wrong" if wrong else text

    # In another thread.

    def _in_background(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Do something in a daemon thread: others may lock the repository for a minute."""
        done: Future[_Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # raised again by ``result``
                done.set_exception(error)
            self._live.requests.ring()

        threading.Thread(target=run, name="shares", daemon=True).start()
        return done


def _result(found: SplitEvidence) -> str:
    wrong = sum(not product.right for product in found.products)
    verdict = f"wrong in {wrong}" if wrong else "right in all"
    return f"{found.share} % ({found.sms} SMs) computes {verdict} of {len(found.products)} products"


def _percent(shares: Sequence[int]) -> str:
    return f"{', '.join(map(str, shares))} %"


def _of(library: str) -> str:
    return f"cuBLAS {library}" if library.isdecimal() else f"{library} evidence"
