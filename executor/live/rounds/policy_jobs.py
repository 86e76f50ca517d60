"""A live job as policies see it, and its runs according to its history."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, WorkloadKey
from dovetail.executor.jobs.states import HOLDING, QUEUED, JobState
from dovetail.executor.live.job_beliefs import workload_name
from dovetail.executor.live.rounds.kinds import ALONE, SharingClass
from dovetail.solver.policies.state import Job

UNKNOWN_WORK_S: Final = 3600.0
"""Assumed work of a job without an estimate or a finished job of its workload."""

LEAST_START_S: Final = 60.0
"""Assumed least time from the start of a job to its first new work."""


class RunHistory(NamedTuple):
    """A job's runs, read from its history.

    Attributes
    ----------
    started_s : float
        When its present run was placed; NaN if it holds no devices.
    ran_from_s : float
        When every rank of its present or last run first ran; NaN before that.
    last_ran_s : float
        Duration of its last run, once that has ended.
    held_s : float
        Seconds for which it held devices in earlier runs.
    done_s : float
        Seconds of work that earlier runs are assumed to have done: all the time they ran if the job
        resumes from checkpoints (``requeue``), otherwise 0.
    waiting_since_s : float
        When it last began to wait.
    """

    started_s: float = math.nan
    ran_from_s: float = math.nan
    last_ran_s: float = 0.0
    held_s: float = 0.0
    done_s: float = 0.0
    waiting_since_s: float = 0.0

    @property
    def start_up_s(self) -> float:
        """How long its present run took to start; 0 if it has not, or holds no devices."""
        took_s = self.ran_from_s - self.started_s
        return 0.0 if math.isnan(took_s) else took_s

    @classmethod
    def of(cls, live: LiveJob) -> Self:
        """Read a job's history from its beginning."""
        past = cls(waiting_since_s=live.submitted_s)
        for step in live.history:
            past = past._after(step.at_s, step.state, live.spec.requeue)
        return past

    def _after(self, at_s: float, state: JobState, resumes: bool) -> Self:
        holding = not math.isnan(self.started_s)
        if state is JobState.STARTING:
            return self._replace(started_s=at_s, ran_from_s=math.nan)
        if state in HOLDING:
            runs = state in (JobState.PROFILING, JobState.RUNNING)
            first = runs and math.isnan(self.ran_from_s)
            return self._replace(ran_from_s=at_s) if first else self
        if not holding:
            return self
        ran_s = 0.0 if math.isnan(self.ran_from_s) else at_s - self.ran_from_s
        return self._replace(
            started_s=math.nan,
            last_ran_s=ran_s,
            held_s=self.held_s + at_s - self.started_s,
            done_s=self.done_s + ran_s if resumes else 0.0,
            waiting_since_s=at_s if state in QUEUED else self.waiting_since_s,
        )


class WorkEstimates:
    """The work of jobs in seconds alone: as the owner says, or as long as equal jobs took.

    Parameters
    ----------
    jobs : iterable of LiveJob
        The jobs so far.
    """

    def __init__(self, jobs: Iterable[LiveJob]) -> None:
        # The number of finished jobs of each workload, and their total seconds.
        self._lasted: dict[WorkloadKey, tuple[int, float]] = {}
        for live in jobs:
            self.note(live)

    def note(self, live: LiveJob) -> bool:
        """Note how long a job took if it finished; return whether it did."""
        if live.state is not JobState.FINISHED:
            return False
        count, lasted_s = self._lasted.get(live.spec.key, (0, 0.0))
        self._lasted[live.spec.key] = count + 1, lasted_s + RunHistory.of(live).last_ran_s
        return True

    def of(self, live: LiveJob) -> float:
        """Return the estimated total work of a job."""
        if live.spec.estimate_s is not None:
            return live.spec.estimate_s
        count, lasted_s = self._lasted.get(live.spec.key, (0, 0.0))
        return lasted_s / count if count else UNKNOWN_WORK_S


@dataclass
class TrackedJob:
    """A job that is not over, with its record in a policy's state.

    Attributes
    ----------
    live : LiveJob
        The job.
    spec : JobSpec
        Its specification when the track was made; an edited job gets a new track.
    job : Job
        Its record in the policy's state.
    key : WorkloadKey
        Its user and workload.
    kind : SharingClass
        Its workload in the policy's state.
    past : RunHistory
        Its runs.
    steps : int
        Length of the history from which ``past`` was read.
    alone_only : str
        The value of ``live.alone_only`` from which ``kind`` was derived.
    """

    live: LiveJob
    spec: JobSpec
    job: Job
    key: WorkloadKey
    kind: SharingClass = ALONE
    past: RunHistory = RunHistory()  # noqa: RUF009 - immutable
    steps: int = 0
    alone_only: str = ""

    @classmethod
    def of(cls, live: LiveJob) -> Self:
        """Return a track of a job whose history has not been read."""
        spec = live.spec
        job = Job(
            number=live.sequence,
            id=live.id,
            workload=0,
            workers=spec.workers,
            work_s=UNKNOWN_WORK_S,
            arrival_s=live.submitted_s,
            gsla=math.inf if spec.gsla is None else spec.gsla,
            weight=spec.weight,
            latency=spec.priority == "latency",
            tenant=spec.owner.name,
            waiting_since_s=live.submitted_s,
        )
        return cls(live, spec, job, spec.key)

    @property
    def name(self) -> str:
        """The name of its workload in the repository."""
        return workload_name(self.spec)

    @property
    def changed(self) -> bool:
        """Whether its devices or its kind may have changed since it was read."""
        live = self.live
        read = self.steps == len(live.history) and self.alone_only == live.alone_only
        return not read or self.job.phase == "running"

    def read_history(self, work_s: float, now_s: float) -> None:
        """Bring the policy's record up to date with the history.

        Parameters
        ----------
        work_s : float
            Estimated work of the whole job alone, in seconds.
        now_s : float
            The service's clock.
        """
        live, job = self.live, self.job
        if self.steps == len(live.history):
            return
        past = RunHistory.of(live)
        began = live.state in HOLDING and past.ran_from_s != self.past.ran_from_s
        self.steps, self.past = len(live.history), past
        job.started_s, job.held_s, job.starts = past.started_s, past.held_s, live.runs
        job.waiting_since_s = max(past.waiting_since_s, live.competes_since_s)
        if live.state not in HOLDING or began:
            job.done_s = past.done_s
            job.since_s = now_s if math.isnan(past.ran_from_s) else past.ran_from_s
            job.work_s = work_s
