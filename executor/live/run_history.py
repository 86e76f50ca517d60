"""What a job's history tells of the runs that it has had."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.states import HOLDING, QUEUED, JobState


class RunHistory(NamedTuple):
    """A job's runs, from its history.

    Attributes
    ----------
    started_s : float
        When its present run was placed; NaN unless it holds devices.
    ran_from_s : float
        When every rank of its present or last run first ran; NaN before that.
    last_ran_s : float
        For how long its last run ran, once that has ended.
    held_s : float
        Seconds it held devices in the runs before the present one.
    done_s : float
        Seconds of work that those are believed to have left: what ran, of a job that resumes
        (``requeue``), and nothing of another.
    waiting_since_s : float
        When it last began to wait.
    """

    started_s: float = math.nan
    ran_from_s: float = math.nan
    last_ran_s: float = 0.0
    held_s: float = 0.0
    done_s: float = 0.0
    waiting_since_s: float = 0.0

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
