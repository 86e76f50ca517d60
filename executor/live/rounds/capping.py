"""What users are told about SM shares: why a run has one, and which jobs wait for proven ones."""

from __future__ import annotations

from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.live.observation.beliefs import SEEN
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.instances._record import listed
from dovetail.instances.slowdowns.shares import caps_of
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED

_NAMED: Final = 4


def why_capped(view: PolicyView, job: LiveJob) -> str:
    """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""
    if job.run is None or view.cluster.uncapped:
        return ""
    residents = view.machine.residents()
    never = {
        other.id: None
        for seat in job.run.seats
        for other in (residents[seat.gpu] if caps_of([seat.share]) else ())
        if other is not job and not _ran_uncapped(view, job, other, seat.gpu)
    }
    if not never:
        return ""
    return f"it never ran without one beside {listed(list(never), _NAMED)}"


def _ran_uncapped(view: PolicyView, job: LiveJob, other: LiveJob, gpu: str) -> bool:
    found = view.belief_at(job, other, UNCAPPED, view.model(gpu))
    return found is not None and found.kind in SEEN


def needs_shares(view: PolicyView, job: LiveJob) -> bool:
    """Return whether a job runs without an SM share only beside jobs it was measured with."""
    return not view.cluster.uncapped and view.machine.may_share(job)


def waits_for_shares(view: PolicyView, job: LiveJob) -> bool:
    """Return whether no SM share is proven for a job that needs one beside others."""
    return needs_shares(view, job) and not any(
        caps_of(view.allowed_for(job.spec, model)) for model in view.models
    )
