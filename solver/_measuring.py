"""The slowdowns that nobody has measured, with which a waiting job could start."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.entries import Member
from dovetail.formulations.refusals import NO_LEAVER, Candidates, Refusal
from dovetail.formulations.rounds import Resident
from dovetail.instances._record import listed
from dovetail.instances.instance import SlowdownEntry
from dovetail.solver._findings import Finder, Finding, Pick

Bools = NDArray[np.bool_]


class Measuring:
    """Finds what would have to be measured for waiting jobs to start.

    Parameters
    ----------
    finder : Finder
        Who is where under the plan.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._instance = finder.instance
        self._jobs = finder.jobs
        self._judged: tuple[Candidates, Bools] | None = None

    def finding(self, index: int) -> Finding | None:
        """Return the best GPUs for a job if what is unknown there were known to be harmless.

        None where nothing is unknown that would let the job start.
        """
        found = self._finder.find(index, self._measurable(index))
        return found if found and found.level == Refusal.UNKNOWN else None

    def entries(self, index: int, finding: Finding) -> tuple[SlowdownEntry, ...]:
        """Return the entries that are missing, as good as none could be better."""
        met = [pick for pick in finding.picks if pick.level == Refusal.UNKNOWN]
        return tuple({e.key: e for e in (self._entry(index, way) for way in met)}.values())

    def pairs(self, index: int, finding: Finding) -> str:
        """Return the combinations of workloads that would have to be measured."""
        entries = self.entries(index, finding)
        told = dict.fromkeys(" + ".join(entry.workloads) for entry in entries)
        return f"{listed(told, 2)} were measured"

    def _measurable(self, index: int) -> Bools:
        """Tell of each way of a kind of job whether a measurement could make it possible."""
        ways = self._finder.refusals.candidates(index)
        if self._judged is None or self._judged[0] is not ways:
            fits = (ways.fixed == Refusal.UNKNOWN) & (ways.leaver == NO_LEAVER) & (ways.short == 0)
            for row in np.flatnonzero(fits):
                fits[row] = not self._known(index, Pick(ways, int(row), Refusal.UNKNOWN, 1))
            self._judged = ways, fits
        return self._judged[1]

    def _known(self, index: int, way: Pick) -> bool:
        """Tell whether the combination is known: it may not share."""
        members = tuple(sorted((name, share or 0) for name, share in self._members(index, way)))
        model = self._finder.sites[way.site].model
        return not self._entry_keys.isdisjoint({(None, members), (model, members)})

    @cached_property
    def _entry_keys(self) -> frozenset[object]:
        return frozenset(entry.key for entry in self._instance.slowdowns)

    def _members(self, index: int, way: Pick) -> list[Member]:
        """Return the job and those it would join, the shares that may be chosen all alike."""
        others = way.others(self._finder.sites[way.site])
        members = [(self._jobs[index].workload, None), *map(self._member, others)]
        free = [True, *(self._finder.starts(other) for other in others)]
        capped = self._even_share(free, [share for _, share in members])
        return [
            (name, capped if f else share) for f, (name, share) in zip(free, members, strict=True)
        ]

    def _entry(self, index: int, way: Pick) -> SlowdownEntry:
        names, shares = zip(*self._members(index, way), strict=True)
        return SlowdownEntry.from_data(
            {
                "pair" if len(names) == 2 else "set": list(names),
                "share": list(shares),
                "slowdown": [1.0] * len(names),
                "power_w": self._power_w(names),
                "gpu_model": self._finder.sites[way.site].model,
            }
        )

    def _power_w(self, names: Sequence[str]) -> float | None:
        """Return the sum of the powers alone, which ``energy`` asks for."""
        alone = [self._instance.workloads[name].power_w for name in names]
        known = [watts for watts in alone if watts is not None]
        return sum(known) if len(known) == len(alone) else None

    def _even_share(self, free: Sequence[bool], shares: Sequence[int | None]) -> int | None:
        """Return the largest share that all who may still choose can have at once."""
        cluster = self._instance.cluster
        held = sum(share or 0 for f, share in zip(free, shares, strict=True) if not f)
        each = (cluster.share_sum - held) // sum(free)
        return max((share for share in cluster.shares if share <= each), default=None)

    def _member(self, occupant: Resident) -> Member:
        return self._jobs[occupant.variant.job].workload, occupant.share
