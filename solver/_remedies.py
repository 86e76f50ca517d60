"""What would let a waiting job start while the plan stays as it is: each remedy is tried.

Candidates are read off what stands against the job; only changes after which nothing stands
against it any more are remedies.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.problems import Problem
from dovetail.formulations.refusals import Candidates, Refusal
from dovetail.formulations.rounds import Resident
from dovetail.formulations.rules import most_bound
from dovetail.instances._record import listed
from dovetail.instances.checker import check
from dovetail.instances.instance import GpuModel, Instance, Node
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, Plan
from dovetail.solver._changes import Change, Remedy
from dovetail.solver._findings import Finder, Finding, Pick, started, with_shares
from dovetail.solver._measuring import Measuring
from dovetail.solver._wording import accepting, figure, mib, placed_at, slowdown_of
from dovetail.solver._worth import Worth

Ints = NDArray[np.int64]

_Price = tuple[float, tuple[str, ...]]
"""The weight lost, and the jobs that it is lost with."""

_MOST_GPUS = 1000
"""Further GPUs that are still called a remedy: numbers are tried on a cluster of that size."""


@dataclass(frozen=True)
class _Outcome:
    """A job that can start after a change: where, and all assignments that differ."""

    finder: Finder
    index: int
    finding: Finding
    assignments: tuple[Assignment, ...]

    @property
    def where(self) -> str:
        return f" {placed_at(self.finder, self.finding)}"

    @property
    def slowdown(self) -> str:
        return slowdown_of(self.finding)

    def remedy(self, change: Change, where: str, condition: str) -> Remedy:
        """Return the remedy that a change is; what costs the objective more only could start."""
        cost = Worth(self.finder).cost(self.index, self.finding)
        text = f"{'could' if cost else 'would'} start{where} {condition}{cost}"
        return Remedy(text=text, change=change, assignments=self.assignments)


class Remedies:
    """Finds what would let one waiting job start.

    Parameters
    ----------
    finder : Finder
        Who is where under the plan.
    index : int
        Index of the job.
    objective : ObjectiveName
        Whose rules hold for who may share.
    """

    def __init__(self, finder: Finder, index: int, objective: ObjectiveName) -> None:
        self._finder = finder
        self._index = index
        self._objective = objective
        self._instance = finder.instance
        self._jobs = finder.jobs
        self._job = finder.jobs[index]
        self._measuring = Measuring(finder)

    def ranked(self) -> tuple[Remedy, ...]:
        """Return the remedies, the cheapest first; those of figures by how little they change."""
        tried = self._tried(Change())
        if tried is not None:
            text = f"can start{tried.where}{tried.slowdown} with nothing changed"
            return (Remedy(text=text, change=Change(), assignments=tried.assignments),)
        found = [self._of_measuring(), *self._of_figures(), self._of_sub_batch()]
        found += [self._of_departure(), self._of_more_gpus()]
        return tuple(remedy for remedy in found if remedy is not None)

    # -- trying -----------------------------------------------------------------------------

    def _tried(self, change: Change) -> _Outcome | None:
        """Return where the job can start after a change, None where it cannot."""
        repaired = self._repaired(change.without)
        if repaired is None:
            return None
        rows = {name: row for name, row in self._finder.rows.items() if name not in change.without}
        changed = change.applied(self._instance, self._job.id)
        kept = {**rows, **repaired}
        same = changed.workloads is self._instance.workloads
        book = self._finder.round.entries if same else None
        finder = Finder(Problem.of(changed, self._objective, book), list(kept.values()))
        index = [job.id for job in changed.jobs].index(self._job.id)
        finding = finder.find(index)
        if finding is None or finding.level != Refusal.NONE:
            return None
        differing = {**repaired, **started(finder, index, finding)}
        if self._objective == "completion" and not _in_time(changed, {**kept, **differing}):
            return None
        return _Outcome(finder, index, finding, tuple(differing.values()))

    def _repaired(self, without: Sequence[str]) -> dict[str, Assignment] | None:
        """Return the assignments of those who need other shares when somebody leaves.

        None where somebody could not stay.
        """
        rows: dict[str, Assignment] = {}
        for site in self._finder.sites:
            left = tuple(o for o in site.occupants if self._name(o) not in without)
            if len(left) == len(site.occupants):
                continue
            shares = self._finder.refusals.shares_of(site, left)
            if shares is None:
                return None
            for occupant, share in zip(left, shares, strict=True):
                if self._finder.starts(occupant):
                    name = self._name(occupant)
                    row = rows.get(name, self._finder.rows[name])
                    rows[name] = with_shares(row, dict.fromkeys(site.gpus, share))
        return rows

    def _remedy(self, change: Change, condition: str) -> Remedy | None:
        """Return the remedy that a change is, None where it is not."""
        tried = self._tried(change)
        if tried is None:
            return None
        known = "" if change.measured else tried.slowdown
        return tried.remedy(change, f"{tried.where}{known}", condition)

    # -- gSLAs and memory -------------------------------------------------------------------

    def _of_figures(self) -> Iterator[Remedy | None]:
        seen = set()
        for finding in sorted(self._near(), key=self._lacking):
            told = self._told(change := self._figures_changed(finding))
            if told not in seen:
                seen.add(told)
                yield self._remedy(change, told)

    def _near(self) -> Iterator[Finding]:
        """Yield the best GPUs if one kind of figure may change, and if all may."""
        ways = self._ways
        kinds = (
            self._finder.refusals.own_excess(self._index) > 0,
            ways.excess.any(axis=1),
            ways.short > 0,
        )
        changeable = [k & ~np.any([o for o in kinds if o is not k], axis=0) for k in kinds]
        for rows in (*changeable, np.any(kinds, axis=0)):
            finding = self._finder.find(self._index, rows & (self._levels == Refusal.FIGURES))
            if finding is not None and finding.level == Refusal.FIGURES:
                yield finding

    def _lacking(self, finding: Finding) -> float:
        lacking = self._finder.refusals.lacking(self._index)
        return max(float(lacking[pick.row]) for pick in finding.picks)

    def _figures_changed(self, finding: Finding) -> Change:
        """Return the gSLAs and the memory with which the job could have the GPUs found."""
        gsla: dict[str, float] = {}
        for pick in finding.picks:
            for name, bound in self._too_slow(pick):
                gsla[name] = max(gsla.get(name, 1.0), accepting(bound))
        short = max(pick.short_mib for pick in finding.picks)
        return Change(gsla=gsla, less_memory_mib=float(math.ceil(short)))

    def _too_slow(self, way: Pick) -> Iterator[tuple[str, float]]:
        if self._job.gsla is not None and way.bound > most_bound(self._job.gsla):
            yield self._job.id, way.bound
        for k, other in enumerate(way.others(self._finder.sites[way.site])):
            if way.too_slow(k):
                yield self._name(other), way.slowed(k)[1]

    def _told(self, change: Change) -> str:
        told = []
        for name, gsla in sorted(change.gsla.items(), key=lambda item: item[0] != self._job.id):
            now = figure(self._instance.jobs_by_id[name].gsla or math.inf)
            whose = "" if name == self._job.id else f"{name}'s "
            told.append(f"{whose}gSLA {gsla:.2f} (now {now})")
        if change.less_memory_mib:
            told.append(f"{mib(change.less_memory_mib)} less memory")
        return f"with {' and '.join(told)}"

    # -- sub-batch, slowdowns, GPUs ---------------------------------------------------------

    def _of_sub_batch(self) -> Remedy | None:
        batch = self._finder.round.workload(self._index).batch
        if batch is None:
            return None
        smaller = (batch.size >> k for k in range(batch.size.bit_length()))
        halves = (half for half in smaller if half < batch.min and batch.size % half == 0)
        told = f"if batch.min (now {batch.min}) allowed sub-batch"
        tried = (self._remedy(Change(batch_min=half), f"{told} {half}") for half in halves)
        return next(filter(None, tried), None)

    def _of_measuring(self) -> Remedy | None:
        """Return which slowdowns would have to be known, and be small enough."""
        finding = self._measuring.finding(self._index)
        if finding is None:
            return None
        change = Change(measured=self._measuring.entries(self._index, finding))
        pairs = self._measuring.pairs(self._index, finding)
        return self._remedy(change, f"if {pairs} and broke no gSLA")

    def _of_departure(self) -> Remedy | None:
        """Return who would have to end or wait: the cheapest, and no more than needed."""
        for leaving in (self._cheapest(self._price), self._cheapest(self._price_of_all)):
            if self._tried(Change(without=leaving)) is not None:
                needed = self._needed(leaving)
                return self._remedy(Change(without=needed), self._told_departure(needed))
        return None

    def _needed(self, leaving: tuple[str, ...]) -> tuple[str, ...]:
        for name in sorted(leaving, key=lambda n: -self._instance.jobs_by_id[n].weight):
            fewer = tuple(other for other in leaving if other != name)
            if self._tried(Change(without=fewer)) is not None:
                leaving = fewer
        return leaving

    def _told_departure(self, leaving: Sequence[str]) -> str:
        jobs = [self._instance.jobs_by_id[name] for name in leaving]
        ended = [job.id for job in jobs if job.running]
        waited = [job.id for job in jobs if not job.running]
        told = [f"once {listed(ended, 3)} {_has(ended)} ended"] if ended else []
        told += [f"if {listed(waited, 3)} waited"] if waited else []
        return " and ".join(told)

    def _cheapest(self, price: Callable[[int], _Price]) -> tuple[str, ...]:
        """Return the jobs that give up as many GPUs of one model as needed at the least price."""
        found = []
        for model in self._finder.round.models:
            sites = [k for k, site in enumerate(self._finder.sites) if site.model == model]
            offers = sorted(price(k) for k in sites for _ in self._finder.sites[k].gpus)
            if len(offers) >= self._job.workers:
                taken = offers[: self._job.workers]
                names = dict.fromkeys(name for _, leaving in taken for name in leaving)
                found.append((sum(weight for weight, _ in taken), tuple(names)))
        return min(found)[1] if found else ()

    def _price_of_all(self, site: int) -> _Price:
        """Return the jobs at a site, and the weight that would be lost without them."""
        occupants = self._finder.sites[site].occupants
        return sum(map(self._loss, occupants)), tuple(map(self._name, occupants))

    def _price(self, site: int) -> _Price:
        """Return who is best gone from a site so that the job can come, with the weight lost."""
        level = self._levels[self._ways.site == site]
        if (level == Refusal.NONE).any():
            return 0.0, ()
        rows = np.flatnonzero((self._ways.site == site) & (self._levels == Refusal.TAKEN))
        occupants = self._finder.sites[site].occupants
        leavers = [occupants[k] for k in sorted(set(self._ways.leaver[rows].tolist()))]
        singles = [(self._loss(one), (self._name(one),)) for one in leavers]
        return min([*singles, self._price_of_all(site)])

    def _loss(self, occupant: Resident) -> float:
        """Return the weight of a placed job for each GPU that this job could have of it."""
        job = self._jobs[occupant.variant.job]
        return job.weight / min(job.workers, self._job.workers)

    def _of_more_gpus(self) -> Remedy | None:
        """Return how many more GPUs would do, of the first model of which any number would."""
        return next(filter(None, map(self._fewest, self._finder.round.models)), None)

    def _fewest(self, model: str) -> Remedy | None:
        """Return the fewest more GPUs of a model that would do."""
        have = sum(place.gpu.model == model for place in self._instance.places.values())
        workers = self._job.workers
        numbers = range(max(1, workers - have), min(workers, _MOST_GPUS) + 1)
        tried = cache(lambda number: self._tried(Change(more_gpus=self._more(model, number))))
        if not numbers or tried(numbers[-1]) is None:
            return None
        number = numbers[bisect_left(numbers, True, key=lambda number: tried(number) is not None)]
        condition = f"if there were {number} more {model}{'s' * (number > 1)}"
        outcome = tried(number)
        change = Change(more_gpus=self._more(model, number))
        return outcome.remedy(change, "", condition) if outcome else None

    def _more(self, model: str, number: int) -> Node:
        gpus = [place.gpu for place in self._instance.places.values() if place.gpu.model == model]
        largest = max(gpus, key=lambda gpu: gpu.memory_mib)
        kind = GpuModel(model=model, memory_mib=largest.memory_mib, sms=largest.sms)
        taken = {node.id for node in self._instance.cluster.nodes}
        name = next(name for k in count(1) if (name := f"new{k}") not in taken)
        return Node(id=name, gpu_count=number, gpu=kind)

    # -- what is at hand --------------------------------------------------------------------

    @property
    def _ways(self) -> Candidates:
        return self._finder.refusals.candidates(self._index)

    @cached_property
    def _levels(self) -> Ints:
        return self._finder.levels(self._index)

    def _name(self, occupant: Resident) -> str:
        return self._jobs[occupant.variant.job].id


def _in_time(instance: Instance, rows: Mapping[str, Assignment]) -> bool:
    """Tell whether nobody shares beyond the forecast's last end."""
    bare = (row.replace(slowdown=None, co_runners=None) for row in rows.values())
    return check(instance, Plan(assignments=tuple(bare)), "completion").valid


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
