"""The waiting jobs that take part in a round: a limited number, from all users.

Otherwise a user who submits very many different jobs would delay the starts of other users' jobs,
because a round considers every job that takes part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from heapq import nsmallest
from operator import attrgetter
from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob

MOST_IN_ROUND: Final = 1000
"""Waiting jobs that take part in a round, unless twice the number of devices is more."""

_OLDEST: Final = 10
"""One part in this many of a user's share is for the longest-waiting jobs, whatever their nice."""


def most_of(devices: int) -> int:
    """Return the number of waiting jobs that take part in a round on this many devices."""
    return max(MOST_IN_ROUND, 2 * devices)


def taking_part(
    queued: Mapping[str, LiveJob], reserved: Iterable[str], most: int
) -> Collection[str]:
    """Return the ids of the jobs that take part: all jobs, or about ``most``.

    Each user has an equal share; unused parts go to the others. A user's jobs are ordered by
    ``nice``, lowest first, then by waiting time, longest first.

    Parameters
    ----------
    queued : mapping of str to LiveJob
        The jobs that wait for devices.
    reserved : iterable of str
        The jobs that have a reservation, which always take part.
    most : int
        The approximate number of jobs.
    """
    if len(queued) <= most:
        return queued.keys()
    of_user: defaultdict[int, list[LiveJob]] = defaultdict(list)
    for job in queued.values():
        of_user[job.spec.owner.uid].append(job)
    found, left = {*reserved}, most
    for others, jobs in zip(
        range(len(of_user), 0, -1), sorted(of_user.values(), key=len), strict=True
    ):
        first = _first(jobs, max(left // others, 1))
        left -= len(first)
        found.update(job.id for job in first)
    return found


def _first(jobs: list[LiveJob], share: int) -> list[LiveJob]:
    if len(jobs) <= share:
        return jobs
    oldest = nsmallest(share // _OLDEST, jobs, key=attrgetter("competes_since_s", "sequence"))
    taken = {job.id for job in oldest}
    rest = (job for job in jobs if job.id not in taken)
    return [*oldest, *nsmallest(share - len(oldest), rest, key=_order)]


def _order(job: LiveJob) -> tuple[int, float, int]:
    return job.spec.nice, job.competes_since_s, job.sequence
