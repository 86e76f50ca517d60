"""Changes that would let a waiting job start while the rest of the plan stays; each is tried.

Candidates come from the limits that keep the job out; only changes after which no limit does are
remedies. For these the changed round is solved: if every best plan starts the job, the text says
"would start", otherwise "could start".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, takewhile
from typing import NamedTuple, Protocol

import numpy as np
from pydantic import Field

from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.refusals import Refusal
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Resident, Round
from dovetail.formulations.rules import MEMORY_TOLERANCE_MIB, most_bound
from dovetail.formulations.values import JobValues
from dovetail.instances._record import (
    IDLE,
    LEAST_POSITIVE,
    Count,
    FrozenDict,
    FrozenMapping,
    Name,
    NonNegative,
    Number,
    Record,
    Text,
    listed,
)
from dovetail.instances.checking.checker import check
from dovetail.instances.instance import GpuModel, Instance, Node, Workload
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, Plan
from dovetail.instances.slowdowns.entry import GpuKind, SlowdownEntry
from dovetail.instances.slowdowns.isolated import isolated_entry
from dovetail.solver.explaining.findings import BestGpus, Finder, Pick, with_shares
from dovetail.solver.explaining.nodes import GpuAtSite, whole_groups
from dovetail.solver.explaining.wording import MECHANISMS, accepting, figure, measured, mib

_Price = tuple[float, tuple[str, ...]]
"""The weight lost, and the jobs that have it."""

_MOST_GPUS = 1000
"""Maximum number of additional GPUs of a remedy: numbers are tried on a cluster of that size."""


class Change(Record):
    """A change of the round; by default, none.

    Attributes
    ----------
    gsla : mapping of str to float
        Larger gSLAs, by job.
    less_memory_mib : float
        Reduction of the memory of a worker of the job's workload (``memory_mib`` and
        ``fixed_mib``).
    less_memory_percent : float
        Reduction of its ``memory_percent``.
    batch_min : int, optional
        A smaller ``batch.min`` of the job's workload.
    measured : tuple of SlowdownEntry
        Slowdowns that would have to be known, at their best.
    isolated : SlowdownEntry, optional
        A pair that would have to be possible, the second isolated: its workload and the share
        ``idle``.
    without : tuple of str
        Jobs that would have to end or wait.
    more_gpus : Node, optional
        Additional GPUs that the cluster would need.
    """

    gsla: FrozenMapping[Name, Number] = Field({})
    less_memory_mib: NonNegative = 0.0
    less_memory_percent: NonNegative = 0.0
    batch_min: Count | None = None
    measured: tuple[SlowdownEntry, ...] = ()
    isolated: SlowdownEntry | None = None
    without: tuple[Name, ...] = ()
    more_gpus: Node | None = None

    def applied(self, instance: Instance, job: str) -> Instance:
        """Return the instance with this change for ``job``."""
        parts: dict[str, object] = {
            "jobs": tuple(
                each.replace(gsla=self.gsla[each.id]) if each.id in self.gsla else each
                for each in instance.jobs
                if each.id not in self.without
            )
        }
        if self.less_memory_mib or self.less_memory_percent or self.batch_min is not None:
            name = instance.jobs_by_id[job].workload
            smaller = {name: self._smaller(instance.workloads[name])}
            parts["workloads"] = FrozenDict({**instance.workloads, **smaller})
        if self.more_gpus is not None:
            nodes = (*instance.cluster.nodes, self.more_gpus)
            parts["cluster"] = instance.cluster.replace(nodes=nodes)
        if self.isolated is not None:
            _, name = self.isolated.workloads
            isolated = {name: instance.workloads[name].replace(isolation="blocks")}
            parts["workloads"] = FrozenDict({**instance.workloads, **isolated})
            shares = dict.fromkeys((*instance.cluster.shares, IDLE))
            parts["cluster"] = instance.cluster.replace(shares=tuple(shares))
        changed = instance.altered(**parts)
        fresh = (*self.measured, *filter(None, [self.isolated]))
        return changed.replace(slowdowns=instance.slowdowns.extended(fresh)) if fresh else changed

    def _smaller(self, workload: Workload) -> Workload:
        if workload.memory_percent is not None:
            percent = max(LEAST_POSITIVE, workload.memory_percent - self.less_memory_percent)
            return workload.replace(memory_percent=percent)
        memory = max(0.0, (workload.memory_mib or 0.0) - self.less_memory_mib)
        batch = workload.batch
        if batch is not None:
            fixed = max(0.0, batch.fixed_mib - self.less_memory_mib)
            batch = batch.replace(fixed_mib=fixed, min=self.batch_min or batch.min)
        return workload.replace(memory_mib=memory, batch=batch)


class Remedy(Record):
    """One way to let a waiting job start.

    Attributes
    ----------
    text : str
        The remedy in one line.
    change : Change
        The change of the round.
    assignments : tuple of Assignment
        The job's possible start, and the assignments that change with it; the rest of the plan
        stays.
    sure : bool
        Whether every best plan of the changed round starts the job, as shown by solving it.
    """

    text: Text
    change: Change
    assignments: tuple[Assignment, ...]
    sure: bool = False


class StartVerdict(NamedTuple):
    """Whether every best plan starts a job; if not, a clause on what may happen instead."""

    sure: bool
    instead: str


class Verdicts(Protocol):
    """Says of changed rounds whether every best plan starts a job, while there is time."""

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        ...

    def of(self, values: JobValues, job: int) -> StartVerdict:
        """Return whether every best plan of a round starts the job with this index."""
        ...


@dataclass(frozen=True)
class _ChangedStart:
    """A job that can start after a change: its GPUs, and all assignments that differ."""

    finder: Finder
    index: int
    finding: BestGpus
    assignments: tuple[Assignment, ...]

    def remedy(self, change: Change, where: str, condition: str, found: StartVerdict) -> Remedy:
        """Return a change as a remedy, worded by the outcome of solving the changed round."""
        if found.sure:
            example = f", for example{where}" if where else ""
            text = f"would start {condition}{example}"
        else:
            lost = self.finder.cost_text(self.index, self.finding)
            text = f"could start{where} {condition}{lost or found.instead}"
        return Remedy(text=text, change=change, assignments=self.assignments, sure=found.sure)


class Remedies:
    """Finds the changes that would let one waiting job start.

    Parameters
    ----------
    finder : Finder
        The GPUs and jobs under the plan.
    index : int
        Index of the job.
    objective : ObjectiveName
        The objective whose rules decide which jobs may share.
    trials : Verdicts
        Solve the changed rounds.
    services : collection of str
        Running jobs without an end.
    """

    def __init__(
        self,
        finder: Finder,
        index: int,
        objective: ObjectiveName,
        trials: Verdicts,
        services: Collection[str] = (),
    ) -> None:
        self._trials, self._services = trials, services
        self._finder = finder
        self._index = index
        self._objective = objective
        self._instance = finder.instance
        self._jobs = finder.jobs
        self._job = finder.jobs[index]
        self._ways = finder.refusals.candidates(index)
        self._levels = finder.levels(index)

    def ranked(self, budget: Budget = UNLIMITED) -> tuple[Remedy, ...]:
        """Return the remedies by rising cost; changes of figures, the smallest first.

        Remedies for which the budget is too short are left out.
        """
        if (unchanged := self._remedy(Change(), "with nothing changed")) is not None:
            return (unchanged,)
        found = takewhile(lambda _: not budget.passed, self._each())
        return tuple(remedy for remedy in found if remedy is not None)

    def _each(self) -> Iterator[Remedy | None]:
        yield self._of_measuring()
        yield from self._of_figures()
        yield self._of_sub_batch()
        yield self._of_isolation()
        yield self._of_departure()
        yield self._of_more_gpus()

    # -- trying -----------------------------------------------------------------------------

    def _tried(self, change: Change) -> _ChangedStart | None:
        """Return where the job can start after a change, or None."""
        repaired = self._repaired(change.without)
        if repaired is None:
            return None
        rows = {name: row for name, row in self._finder.rows.items() if name not in change.without}
        changed = change.applied(self._instance, self._job.id)
        kept = {**rows, **repaired}
        compiled = Round.of(changed, self._finder.round.slowdowns)
        finder = Finder(job_values(compiled, self._objective), list(kept.values()))
        index = [job.id for job in changed.jobs].index(self._job.id)
        finding = finder.find(index)
        if finding is None or finding.level != Refusal.NONE:
            return None
        differing = {**repaired, **finder.started(index, finding)}
        # Rules about more than one GPU are left to the checker.
        by_node = finder.round.hosts is not None or self._job.by_node
        several = finder.values.grouped or by_node
        if several and not _is_valid(changed, {**kept, **differing}, self._objective):
            return None
        return _ChangedStart(finder, index, finding, tuple(differing.values()))

    def _repaired(self, without: Sequence[str]) -> dict[str, Assignment] | None:
        """Return the assignments of the jobs that need other shares when some leave.

        The result is None if a job could not stay.
        """
        rows: dict[str, Assignment] = {}
        machines = self._finder.round.machines
        for site in self._finder.sites:
            left = tuple(o for o in site.occupants if self._finder.name(o) not in without)
            if len(left) == len(site.occupants):
                continue
            shares = self._finder.refusals.shares_of(site, left)
            if shares is None:
                return None
            for occupant, share in zip(left, shares, strict=True):
                if self._finder.starts(occupant):
                    name = self._finder.name(occupant)
                    row = rows.get(name, self._finder.rows[name])
                    rows[name] = with_shares(row, dict.fromkeys(machines.names(site.gpus), share))
        return rows

    def _remedy(self, change: Change, condition: str) -> Remedy | None:
        """Return a change as a remedy, or None if it does not help."""
        tried = self._tried(change)
        if tried is None:
            return None
        known = "" if change.measured else tried.finding.figures
        where = f" {tried.finder.place_text(tried.finding)}{known}"
        return tried.remedy(
            change, where, condition, self._trials.of(tried.finder.values, tried.index)
        )

    # -- gSLAs and memory -------------------------------------------------------------------

    def _of_figures(self) -> Iterator[Remedy | None]:
        seen = set()
        for finding in sorted(self._near(), key=self._lacking):
            text = self._text(change := self._figures_changed(finding))
            if text not in seen:
                seen.add(text)
                yield self._remedy(change, text)

    def _near(self) -> Iterator[BestGpus]:
        """Yield the best GPUs if one kind of figure may change, and if all kinds may."""
        kinds = (
            self._finder.refusals.own_excess(self._index) > 0,
            self._ways.excess.any(axis=1),
            self._ways.short > 0,
        )
        changeable = [k & ~np.any([o for o in kinds if o is not k], axis=0) for k in kinds]
        for rows in (*changeable, np.any(kinds, axis=0)):
            finding = self._finder.find(self._index, rows & (self._levels == Refusal.FIGURES))
            if finding is not None and finding.level == Refusal.FIGURES:
                yield finding

    def _lacking(self, finding: BestGpus) -> float:
        lacking = self._finder.refusals.lacking(self._index)
        return max(float(lacking[pick.row]) for pick in finding.picks)

    def _figures_changed(self, finding: BestGpus) -> Change:
        """Return the change of gSLAs and memory with which the job could use the GPUs found."""
        gsla: dict[str, float] = {}
        for pick in finding.picks:
            for name, bound in self._too_slow(pick):
                gsla[name] = max(gsla.get(name, 1.0), accepting(bound))
        if self._instance.workloads[self._job.workload].memory_percent is not None:
            return Change(gsla=gsla, less_memory_percent=max(map(self._short, finding.picks)))
        short = max(pick.short_mib for pick in finding.picks)
        return Change(gsla=gsla, less_memory_mib=float(math.ceil(short)))

    def _short(self, pick: Pick) -> float:
        """Return the missing memory in whole per cent of what the GPU offers."""
        offered = float(self._finder.round.classes.memory_mib[pick.site.gpu_class])
        percent = 100 * pick.short_mib / max(offered, 1.0)
        return float(math.ceil(percent - MEMORY_TOLERANCE_MIB))

    def _too_slow(self, way: Pick) -> Iterator[tuple[str, float]]:
        if self._job.gsla is not None and way.bound > most_bound(self._job.gsla):
            yield self._job.id, way.bound
        for k, _, bound in way.too_slow():
            yield self._finder.name(way.others[k - 1]), bound

    def _text(self, change: Change) -> str:
        parts = []
        for name, gsla in sorted(change.gsla.items(), key=lambda item: item[0] != self._job.id):
            now = figure(self._instance.jobs_by_id[name].gsla or math.inf)
            owner = "" if name == self._job.id else f"{name}'s "
            parts.append(f"{owner}gSLA {gsla:.2f} (now {now})")
        if change.less_memory_percent:
            parts.append(f"{change.less_memory_percent:g} % less of the GPU's memory")
        if change.less_memory_mib:
            parts.append(f"{mib(change.less_memory_mib)} less memory")
        return f"with {' and '.join(parts)}"

    # -- sub-batch, slowdowns, GPUs ---------------------------------------------------------

    def _of_sub_batch(self) -> Remedy | None:
        batch = self._finder.round.workload(self._index).batch
        if batch is None:
            return None
        smaller = (batch.size >> k for k in range(batch.size.bit_length()))
        halves = (half for half in smaller if half < batch.min and batch.size % half == 0)
        text = f"if batch.min (now {batch.min}) allowed sub-batch"
        tried = (self._remedy(Change(batch_min=half), f"{text} {half}") for half in halves)
        return next(filter(None, tried), None)

    def _of_measuring(self) -> Remedy | None:
        """Return the remedy that unknown slowdowns were measured, and are small enough."""
        finding = self._finder.unmeasured(self._index)
        if finding is None:
            return None
        missing = self._finder.missing(self._index, finding)
        condition = f"if {measured(missing)} and did not slow each other"
        return self._remedy(Change(measured=missing), condition)

    def _of_isolation(self) -> Remedy | None:
        """Return the remedy that the job runs isolated beside a latency-critical job."""
        critical = {job.workload for job in self._jobs if job.priority == "latency"}
        for first in sorted(critical):
            entry = isolated_entry(self._instance, first, self._job.workload)
            if entry is not None and entry.key not in self._instance.entries:
                name = self._job.workload
                text = f"if {name} were isolated (isolation: blocks, and idle among shares)"
                remedy = self._remedy(Change(isolated=entry), text)
                if remedy is not None:
                    return remedy
        return None

    def _of_departure(self) -> Remedy | None:
        """Return the remedy that jobs end or wait: the cheapest, and only as many as needed."""
        for leaving in (self._cheapest(self._price), self._cheapest(self._price_of_all)):
            if self._tried(Change(without=leaving)) is not None:
                needed = self._needed(leaving)
                return self._remedy(Change(without=needed), self._departure_text(needed))
        return None

    def _needed(self, leaving: tuple[str, ...]) -> tuple[str, ...]:
        for name in sorted(leaving, key=lambda n: -self._instance.jobs_by_id[n].weight):
            fewer = tuple(other for other in leaving if other != name)
            if self._tried(Change(without=fewer)) is not None:
                leaving = fewer
        return leaving

    def _departure_text(self, leaving: Sequence[str]) -> str:
        jobs = [self._instance.jobs_by_id[name] for name in leaving]
        endless = [job.id for job in jobs if job.running and job.id in self._services]
        ended = [job.id for job in jobs if job.running and job.id not in endless]
        waited = [job.id for job in jobs if not job.running]
        has = "has" if len(ended) == 1 else "have"
        parts = [f"once {listed(ended, 3)} {has} ended"] if ended else []
        parts += [f"if {listed(waited, 3)} waited"] if waited else []
        if endless:
            named = f"service{'s' * (len(endless) > 1)} {listed(endless, 3)}"
            parts.append(f"if the {named} were cancelled or had fewer replicas")
        return " and ".join(parts)

    def _cheapest(self, price: Callable[[int], _Price]) -> tuple[str, ...]:
        """Return the jobs that free enough GPUs of one model at the least price."""
        found = []
        for model in self._finder.round.models:
            taken = self._offers(model, price)
            if len(taken) >= self._job.workers:
                names = dict.fromkeys(name for _, leaving in taken for name in leaving)
                found.append((sum(weight for weight, _ in taken), tuple(names)))
        return min(found)[1] if found else ()

    def _offers(self, model: str, price: Callable[[int], _Price]) -> Sequence[_Price]:
        """Return the prices of the cheapest GPUs of a model on which the job could be."""
        sites = [k for k, site in enumerate(self._finder.sites) if site.model == model]
        if not self._job.by_node:
            offers = sorted(price(k) for k in sites for _ in self._finder.sites[k].gpus)
            return offers[: self._job.workers]
        node = self._finder.round.machines.node
        gpus = ((k, gpu) for k in sites for gpu in self._finder.sites[k].gpus)
        chosen = whole_groups(self._job, (GpuAtSite(price(k)[0], node[g], g, k) for k, g in gpus))
        return [price(each.site) for each in chosen]

    def _price_of_all(self, site: int) -> _Price:
        """Return the jobs at a site, and the weight that would be lost without them."""
        occupants = self._finder.sites[site].occupants
        return sum(map(self._loss, occupants)), tuple(map(self._finder.name, occupants))

    def _price(self, site: int) -> _Price:
        """Return the jobs best removed from a site for the new job, and the weight lost."""
        level = self._levels[self._ways.site == site]
        if (level == Refusal.NONE).any():
            return 0.0, ()
        rows = np.flatnonzero((self._ways.site == site) & (self._levels == Refusal.TAKEN))
        occupants = self._finder.sites[site].occupants
        displaced_jobs = [occupants[k] for k in sorted(set(self._ways.displaced[rows].tolist()))]
        singles = [(self._loss(one), (self._finder.name(one),)) for one in displaced_jobs]
        return min([*singles, self._price_of_all(site)])

    def _loss(self, occupant: Resident) -> float:
        """Return the weight of a placed job per GPU that it would free for this job.

        A service leaves only if no other job can.
        """
        job = self._jobs[occupant.job]
        if job.id in self._services:
            return math.inf
        return job.weight / min(job.workers, self._job.workers)

    def _of_more_gpus(self) -> Remedy | None:
        """Return the remedy of more GPUs, of the first kind for which some number helps."""
        return next(filter(None, map(self._fewest, self._finder.round.kinds)), None)

    def _fewest(self, kind: GpuKind) -> Remedy | None:
        """Return the least number of additional GPUs of a kind that helps if the rest stays.

        If other jobs would take them, the number is raised until every best plan starts the job, if
        the trials find one.
        """
        model = kind.model
        have = sum(place.gpu.model == model for place in self._instance.places.values())
        workers = self._job.workers
        numbers = range(max(1, workers - have), min(workers, _MOST_GPUS) + 1)
        tried = cache(lambda number: self._tried(Change(more_gpus=self._more(kind, number))))
        if not numbers or tried(numbers[-1]) is None:
            return None
        number = numbers[bisect_left(numbers, True, key=lambda number: tried(number) is not None)]
        demand = sum(job.workers for job in self._jobs if job.id not in self._finder.rows)
        found: Remedy | None = None
        for more in _doubled(number, max(number, min(demand, _MOST_GPUS))):
            if (outcome := tried(more)) is None or (found and self._trials.over):
                break
            verdict = self._trials.of(outcome.finder.values, outcome.index)
            if found is None or verdict.sure:
                where = " on one node" if self._job.by_node and more > 1 else ""
                if len(self._finder.round.kinds) > len(self._finder.round.models):
                    where = f" shared by {MECHANISMS[kind.sharing]}{where}"
                condition = f"if there were {more} more {model}{'s' * (more > 1)}{where}"
                change = Change(more_gpus=self._more(kind, more))
                found = outcome.remedy(change, "", condition, verdict)
            if verdict.sure:
                break
        return found

    def _more(self, kind: GpuKind, number: int) -> Node:
        every = (place.gpu for place in self._instance.places.values())
        gpus = [gpu for gpu in every if self._instance.cluster.kind_of(gpu) == kind]
        largest = max(gpus, key=lambda gpu: gpu.memory_mib)
        alike = GpuModel(**largest.model_dump(exclude={"id"}))
        taken = {node.id for node in self._instance.cluster.nodes}
        name = next(name for k in count(1) if (name := f"new{k}") not in taken)
        return Node(id=name, gpu_count=number, gpu=alike)


def _doubled(first: int, last: int) -> Iterator[int]:
    """Yield a number, its doubles below the last one, and the last one."""
    while first < last:
        yield first
        first *= 2
    yield last


def _is_valid(instance: Instance, rows: Mapping[str, Assignment], objective: ObjectiveName) -> bool:
    """Return whether these assignments break no rule."""
    bare = (row.replace(slowdown=None, co_runners=None, start=None) for row in rows.values())
    return check(instance, Plan(assignments=tuple(bare)), objective).valid
