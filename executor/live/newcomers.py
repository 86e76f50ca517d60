"""Who has come lately, and what cap that makes worth taking for a job that starts alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dovetail.executor.live.beliefs import BeliefTable
from dovetail.executor.live.capped import Partner, best_cap
from dovetail.executor.live.kinds import workload_name
from dovetail.executor.live.live_jobs import LiveJob
from dovetail.formulations.rules import most_bound

RECENT_S: Final = 3600.0
"""What lately is: newcomers are expected as often as in this time."""

_MOST: Final = 1000


class _Arrival(NamedTuple):
    at_s: float
    uid: int
    workload: str


@dataclass
class Newcomers:
    """The last jobs that were submitted, at most ``_MOST``."""

    _arrivals: deque[_Arrival] = field(default_factory=lambda: deque(maxlen=_MOST))

    def note(self, live: LiveJob) -> None:
        """Note a job that was submitted."""
        owner = live.spec.owner
        self._arrivals.append(_Arrival(live.submitted_s, owner.uid, workload_name(live.spec)))

    @property
    def workloads(self) -> Collection[str]:
        """What they run, by the names of the repository."""
        return dict.fromkeys(arrival.workload for arrival in self._arrivals)

    def per_s(self, now_s: float) -> float:
        """Return how many came in a second lately."""
        return sum(a.at_s > now_s - RECENT_S for a in self._arrivals) / RECENT_S

    def best_cap(self, host: Host, alone: Mapping[int | None, float], per_s: float) -> int | None:
        """Return the cap that a job takes best that starts alone; None = none.

        Parameters
        ----------
        host : Host
            The job.
        alone : mapping of (int or None) to float
            Its rate alone at each cap that it may take.
        per_s : float
            How many newcomers a second come to its device.
        """
        partners = {share: self._partners(host, share) for share in alone}
        return best_cap(alone, partners, host.work_s, per_s).share

    def _partners(self, host: Host, share: int | None) -> list[Partner]:
        recent = Counter((arrival.uid, arrival.workload) for arrival in self._arrivals)
        ways = {who: host.best_way(share, who[1]) for who in recent if who[0] not in host.apart}
        return [Partner(recent[who] / recent.total(), *way) for who, way in ways.items() if way]


class Host(NamedTuple):
    """A job that starts alone.

    Attributes
    ----------
    workload, model : str
        What it runs, on which device model.
    gsla, work_s : float
        As it counts, infinite where it has none; and the seconds that it needs alone.
    table : BeliefTable
        What is believed.
    shares : collection of int
        Those that are allowed to it and to newcomers.
    apart : collection of int
        Users that may not share with its own.
    """

    workload: str
    model: str
    gsla: float
    work_s: float
    table: BeliefTable
    shares: Collection[int]
    apart: Collection[int]

    def best_way(self, share: int | None, other: str) -> tuple[float, float] | None:
        """Return both slowdowns in the way in which two do the most work; None = in no way."""
        found = []
        for mine, theirs in self.table.caps:
            if mine != share or (theirs is not None and theirs not in self.shares):
                continue
            there = self.table.belief(self.model, (mine, theirs), self.workload, other)
            back = self.table.belief(self.model, (theirs, mine), other, self.workload)
            if there and back and there.upper <= most_bound(self.gsla):
                found.append((there.slowdown, back.slowdown))
        return max(found, key=lambda way: 1 / way[0] + 1 / way[1], default=None)
