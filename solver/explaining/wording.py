"""Why a job waits, in one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, Literal

import numpy as np

from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.refusals import Refusal
from dovetail.formulations.rules import MEMORY_TOLERANCE_MIB, most_bound, room_mib
from dovetail.formulations.values import JobValues
from dovetail.instances._record import listed
from dovetail.instances.instance import Job
from dovetail.instances.plan import Assignment, Nearest, Stop, Waiting
from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry
from dovetail.solver.explaining.findings import BestGpus, Finder, Pick
from dovetail.solver.explaining.nodes import enough_groups, lacks_text

Category = Literal[
    "size",
    "nodes",
    "memory",
    "unknown",
    "sharing",
    "gsla",
    "host",
    "jct",
    "completion",
    "objective",
    "closed",
    "capacity",
    "stopped",
]
"""Why a job waits; see ``dovetail.solver.explaining.explanations``."""

NOT_EXAMINED = "not examined: the time was up"
"""The reason of waiting jobs for which there was no time."""

MECHANISMS: Final[Mapping[SharingMode | None, str]] = {
    "mps": "MPS",
    "time_sliced": "time slicing",
}
"""The ways to share a GPU in words."""

_Reason = tuple[Category, str, Nearest | None]


_TOO_MANY = 3
"""The number of limits from which on not all are named."""


def stopped(stop: Stop, reason: str) -> str:
    """Return the reason of a running job that is stopped, from the reason to wait."""
    return f"stopped: it runs on {listed(stop.gpus, 4)} now; {reason}"


def bare(reason: str) -> str:
    """Return a reason without its category."""
    return reason.partition(": ")[2]


def reasons(
    values: JobValues,
    assignments: Sequence[Assignment],
    budget: Budget = UNLIMITED,
    stops: Sequence[Stop] = (),
) -> tuple[Waiting, ...]:
    """Return why each unplaced job waits, in the order of the instance.

    Parameters
    ----------
    values : JobValues
        The objective in the round, already preempted if running jobs may move.
    assignments : sequence of Assignment
        A valid plan for it.
    budget : Budget
        When to stop; jobs that are not reached by then have only this as their reason.
    stops : sequence of Stop
        The running jobs that do not stay.
    """
    jobs, placed = values.round.instance.jobs, {row.job for row in assignments}
    waiting = [k for k, job in enumerate(jobs) if job.id not in placed]
    demand = _demands(values)
    first: dict[tuple[object, ...], int] = {}
    for k in waiting:
        first.setdefault(demand[k], k)
    found: dict[tuple[object, ...], _Reason] = {}
    if first and not budget.passed:
        wording = Wording(Finder(values, assignments))
        # One kind of job after the other, because the candidates of only a few kinds are cached.
        kinds = attrgetter("workload", "priority", "workers")
        for k in sorted(first.values(), key=lambda k: kinds(jobs[k])):
            if budget.passed:
                break
            found[demand[k]] = wording.reason(k)
    unknown: _Reason = ("capacity", NOT_EXAMINED, None)
    leaving = {stop.job: stop for stop in stops}
    rows = ((jobs[k].id, found.get(demand[k], unknown)) for k in waiting)
    told = ((name, of_stopped(leaving.get(name), reason)) for name, reason in rows)
    return tuple(Waiting(job=name, reason=why, nearest=near) for name, (_, why, near) in told)


def of_stopped(stop: Stop | None, found: _Reason) -> _Reason:
    """Return why a job waits; if it runs now, that it is stopped."""
    if stop is None:
        return found
    _, reason, nearest = found
    why = reason if reason == NOT_EXAMINED else bare(reason)
    return "stopped", stopped(stop, why), nearest


def _demands(values: JobValues) -> list[tuple[object, ...]]:
    """Return everything that the reason of each job depends on if it waits."""
    every = np.arange(len(values.round))
    alone = [0.0] * len(every)
    if values.grouped and values.round.models:
        # Equal jobs start one after the other in a forecast, and their gains differ by the start.
        alone = values.gain(every, np.ones(len(every)), values.round.models[0]).tolist()
    return [
        (
            *(job.workload, job.workers, job.workers_per_node, job.workers_together, job.sharing),
            *(job.gsla, job.priority, job.weight, job.remaining_s, gain),
        )
        for job, gain in zip(values.round.instance.jobs, alone, strict=True)
    ]


class Wording:
    """Puts findings into words.

    Parameters
    ----------
    finder : Finder
        The source of the findings.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._round = finder.round
        self._jobs = finder.jobs

    def reason(self, index: int) -> _Reason:
        """Return why a job waits: the category, the sentence, and the nearest co-runner."""
        too_large = self._too_large(index)
        if too_large:
            return *too_large, None
        finding = self._finder.find(index)
        if finding is None:
            raise AssertionError("a job that some GPU model has enough GPUs for has a finding")
        if finding.level != Refusal.NONE and (lacks := self._on_nodes(index)):
            return "nodes", f"nodes: {lacks}{self._cure(index, finding)}", self._nearest(finding)
        near = self._nearest_free(index, finding) if finding.level == Refusal.TAKEN else finding
        category, limits = self._limits(index, finding, near)
        reason = f"{category}: {self._lacks(index, finding)}{limits}{self._cure(index, finding)}"
        return category, reason, self._nearest(near)

    def _on_nodes(self, index: int) -> str:
        """Return what keeps a job out if it could start but for its rule for nodes, or ""."""
        job = self._jobs[index]
        if not job.by_node:
            return ""
        counts, free = self._finder.by_node(index)
        if sum(counts.values()) < job.workers:
            return ""
        return lacks_text(job, counts, "free " if free else "available ")

    def _lacks(self, index: int, finding: BestGpus) -> str:
        """Return how many GPUs a gang could have, if they are too few."""
        workers, possible = self._jobs[index].workers, finding.possible
        if workers == 1 or possible == workers:
            return ""
        number = f"only {possible}" if possible else "none"
        verb = "are" if possible > 1 else "is"
        return f"{number} of its {workers} GPUs {verb} available; "

    def _cure(self, index: int, finding: BestGpus) -> str:
        """Return how measuring would help the job, at no cost to other jobs."""
        unknown = self._finder.unmeasured(index)
        if unknown is None or finding.level == Refusal.NONE:
            return ""
        pairs = measured(self._finder.missing(index, unknown))
        return f"; it could start {self._finder.place_text(unknown)} if {pairs}"

    def _nearest_free(self, index: int, taken: BestGpus) -> BestGpus:
        """Return GPUs with room that only figures rule out, or else the full ones."""
        near = self._finder.find(index, self._finder.levels(index) != Refusal.TAKEN)
        return near if near and near.level == Refusal.FIGURES else taken

    # -- limits of the cluster ------------------------------------------------------------

    def _too_large(self, index: int) -> tuple[Category, str] | None:
        """Return why the job is too large if no model of the cluster has its GPUs or memory."""
        workers = self._jobs[index].workers
        most = max((len(sizes) for sizes in self._memory.values()), default=0)
        if workers > most:
            models = [model for model, sizes in self._memory.items() if len(sizes) == most]
            has = f"the cluster has {most}" + (f" ({listed(models)})" if most else "")
            needs = "a GPU" if workers == 1 else f"{workers} GPUs of one model"
            return "size", f"size: it needs {needs}, and {has}"
        job = self._jobs[index]
        if job.by_node and not enough_groups(job, counts := self._finder.most_groups(job)):
            return "nodes", f"nodes: {lacks_text(job, counts)}"
        offered = max(s[workers - 1] for s in self._memory.values() if len(s) >= workers)
        first = self._round.variants_of(index)
        need = self._round.variants.need_mib(np.array([first]), np.array([offered]))
        least = float(need.min())
        if least <= room_mib(offered):
            return None
        offer = "no GPU offers" if workers == 1 else f"no {workers} GPUs of one model offer"
        most_mib = mib(math.floor(offered))
        return "memory", f"memory: it needs {mib(least)}, and {offer} more than {most_mib}"

    @cached_property
    def _memory(self) -> dict[str, list[float]]:
        """The memory of each GPU by model, the largest first."""
        found: dict[str, list[float]] = {model: [] for model in self._round.models}
        classes = self._round.classes
        for model, memory, size in zip(
            classes.model.tolist(), classes.memory_mib.tolist(), classes.size.tolist(), strict=True
        ):
            found[self._round.models[model]] += [memory] * size
        return {model: sorted(sizes, reverse=True) for model, sizes in found.items()}

    # -- the limits that keep it out ------------------------------------------------------

    def _limits(self, index: int, finding: BestGpus, near: BestGpus) -> tuple[Category, str]:
        """Return the category and the rest of the sentence."""
        way = finding.binding
        match way.level:
            case Refusal.NONE | Refusal.HOST if short := self._finder.short_host(index, finding):
                return "host", _host_text(*short)
            case Refusal.NONE | Refusal.HOST:
                return "capacity", self._possible_text(index, finding)
            case Refusal.TAKEN:
                return "capacity", self._taken_text(index, finding.binding, near)
            case Refusal.FIGURES | Refusal.TAKEN_FIGURES:
                return self._figures_text(index, finding)
            case Refusal.OBJECTIVE | Refusal.TAKEN_OBJECTIVE:
                return self._objective_text(way)
            case Refusal.UNKNOWN if way.short_mib:
                return "memory", f"{self._beside(way)} {self._missing(index, way)}"
            case Refusal.UNKNOWN:
                return "unknown", "no known slowdown lets it share a GPU with a job that is placed"
            case Refusal.SHARING:
                return "sharing", self._sharing_text(index, way)
            case Refusal.APART:
                return "capacity", "the other GPUs are held by gangs that share only as a whole"
            case Refusal.CLOSED:
                return "closed", self._closed_text(way)

    def _possible_text(self, index: int, finding: BestGpus) -> str:
        where = f"{self._finder.place_text(finding)}{finding.figures}"
        better = "; a plan with it would be better, though by less than the gap"
        return f"it could start {where}{self._finder.cost_text(index, finding) or better}"

    def _taken_text(self, index: int, way: Pick, near: BestGpus) -> str:
        if near.level == Refusal.FIGURES:
            return f"the GPUs that suit it are full; {self._figures_text(index, near)[1]}"
        held = listed(map(self._finder.name, way.site.occupants), 3)
        return f"the GPUs that suit it are full, such as {self._finder.gpu(way)} with {held}"

    def _figures_text(self, index: int, finding: BestGpus) -> tuple[Category, str]:
        way, job = finding.binding, self._jobs[index]
        missing = [self._missing(index, way)] if way.short_mib else []
        slowed = []
        if job.gsla is not None and way.bound > most_bound(job.gsla):
            later = self._finder.later(index, way, 0)
            slowed.append(compared("its", job, way.slowdown, way.bound, later))
        for k, slowdown, bound in way.too_slow():
            owner = self._jobs[way.others[k - 1].job]
            later = self._finder.later(index, way, k)
            slowed.append(compared(f"{owner.id}'s", owner, slowdown, bound, later))
        category: Category = "memory" if way.mostly_memory(job) else "gsla"
        parts = [*missing, *slowed] if category == "memory" else [*slowed, *missing]
        limits = parts if len(parts) < _TOO_MANY else [parts[0], "more limits would be broken"]
        size = finding.sub_batch if finding.slowdown_factor != 1 else None
        at = f" at sub-batch {size}" if size else ""
        return category, f"{self._beside(way)}{self._instead(way)}{at} {', and '.join(limits)}"

    def _objective_text(self, way: Pick) -> tuple[Category, str]:
        where = f"{self._beside(way)}{self._instead(way)}"
        values = self._finder.values
        if len(way.others) > 1 and values.pairs_only:
            rule = f"it would be one too many: under {values.name} only two may share"
        else:
            rule = values.rule
        return values.category, f"{where} {rule}"

    def _sharing_text(self, index: int, way: Pick) -> str:
        there = way.site.kind.sharing
        where = f"{self._finder.gpu(way)} is shared by {MECHANISMS[there]}"
        own = self._jobs[index].sharing
        if own not in (None, there):
            return f"it needs a GPU shared by {MECHANISMS[own]} or one to itself, and {where}"
        bound = (self._jobs[other.job] for other in way.others)
        name, needs = next((j.id, j.sharing) for j in bound if j.sharing not in (None, there))
        return f"{name} shares a GPU only by {MECHANISMS[needs]}, and {where}"

    def _closed_text(self, way: Pick) -> str:
        held = listed(map(self._finder.name, way.site.occupants), 2)
        where = f"{self._finder.gpu(way)}, where running jobs ({held})"
        return f"nothing may join {where} break a limit already"

    # -- parts of sentences -------------------------------------------------------------

    def _beside(self, way: Pick) -> str:
        share = "" if way.share is None else f" at share {way.share}"
        others = listed(map(self._finder.name, way.others), 3)
        where = f"with {others}" if others else "alone"
        return f"{where} on {self._finder.gpu(way)}{share}"

    def _missing(self, index: int, way: Pick) -> str:
        percent = self._round.workload(index).memory_percent
        needs = "" if percent is None else f" (it needs {percent:.4g} % of the GPU's memory)"
        return f"{mib(way.short_mib)} of memory would be missing{needs}"

    def _instead(self, way: Pick) -> str:
        return f" in place of {self._finder.name(way.displaced)}" if way.displaced else ""

    def _nearest(self, finding: BestGpus) -> Nearest | None:
        way = finding.binding
        if not way.others:
            return None
        slowdown = None if math.isnan(way.slowdown) else way.slowdown
        name = self._finder.name(way.others[0])
        return Nearest(
            co_runner=name, share=way.share, slowdown=slowdown, gpu=self._finder.gpu(way)
        )


def _host_text(node: str, resource: str, asked: float, needed: float) -> str:
    left = max(0.0, 1 - asked)
    return (
        f"{node} has {100 * left:.0f} % of its {resource} left, and it needs {100 * needed:.0f} % "
        "there; beyond that, one job starts in each round, alone on an idle GPU, "
        "if it gains more than others lose"
    )


def measured(entries: Iterable[SlowdownEntry]) -> str:
    """Return the condition that these combinations of workloads were measured."""
    names = dict.fromkeys(" + ".join(entry.workloads) for entry in entries)
    return f"{listed(names, 2)} were measured"


def accepting(bound: float) -> float:
    """Return the least gSLA with two decimals that a bound meets."""
    return max(1.0, math.ceil(round(bound * 100, 6)) / 100)


def figure(gsla: float) -> str:
    """Return a gSLA as the user wrote it, with at least two decimals."""
    return f"{gsla:.2f}" if round(gsla, 2) == gsla else f"{gsla:.10g}"


def compared(whose: str, job: Job, slowdown: float, bound: float, later: bool) -> str:
    """Return a job's slowdown, or the growth of its p99, against the gSLA that it exceeds.

    ``later``: it exceeds the gSLA only after co-runners have ended.
    """
    verb = "would be" if bound == slowdown else "could reach"
    text = f"{whose} slowdown {verb} {accepting(bound):.2f}"
    if job.priority == "latency":
        text = f"{whose} p99 latency could grow {accepting(bound):.2f} times"
    text += " once co-runners have ended" if later else ""
    return f"{text}, above its gSLA {figure(job.gsla or math.inf)}"


def mib(amount: float) -> str:
    """Return an amount of memory, rounded up to whole MiB."""
    return f"{math.ceil(amount - MEMORY_TOLERANCE_MIB):,} MiB"
