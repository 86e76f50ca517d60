"""What stands against a waiting job, in one line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from dovetail.formulations.rounds import MEMORY_TOLERANCE_MIB, Variant
from dovetail.formulations.values import JobValues
from dovetail.instances._record import listed
from dovetail.instances.plan import Nearest
from dovetail.solver._findings import Finder, Finding, Way
from dovetail.solver._sites import Site
from dovetail.solver._ways import Level

Category = Literal["size", "memory", "unknown", "gsla", "jct", "closed", "capacity"]
"""Why a job waits; see ``dovetail.solver.explanations``."""


class Wording:
    """Tells findings.

    Parameters
    ----------
    finder : Finder
        Where they come from.
    values : JobValues
        The objective.
    """

    def __init__(self, finder: Finder, values: JobValues) -> None:
        self._finder = finder
        self._values = values
        self._round = finder.round
        self._jobs = finder.round.jobs

    def reason(self, index: int) -> tuple[Category, str, Nearest | None]:
        """Return why a job waits: the category, the sentence, and the nearest co-runner."""
        too_large = self._too_large(index)
        if too_large:
            return *too_large, None
        finding = self._finder.find(index)
        if finding is None:
            raise AssertionError("a job that fits enough GPUs of a model has a finding")
        category = self._category(finding.binding)
        return category, self._sentence(index, finding), self._nearest(finding.binding)

    def place(self, index: int, finding: Finding) -> str:
        """Return where the job would be: beside whom, on which GPUs, how slow."""
        gpus: list[str] = []
        others: list[str] = []
        for pick in finding.picks:
            site = self._finder.sites.all[pick.way.site]
            gpus += site.gpus[: pick.number]
            others += [self._jobs[o.variant.job].id for o in pick.way.others(site)]
        beside = f"beside {listed(dict.fromkeys(others), 3)}" if others else "alone"
        return f"{beside} on {listed(gpus, 4)}{_how(self._jobs[index].workers, finding)}"

    # -- what no plan could change --------------------------------------------------------

    def _too_large(self, index: int) -> tuple[Category, str] | None:
        """Tell whether the job needs more GPUs or memory than any model of the cluster has."""
        workers = self._jobs[index].workers
        most = max(len(sizes) for sizes in self._memory.values())
        if workers > most:
            models = [model for model, sizes in self._memory.items() if len(sizes) == most]
            return "size", f"size: needs {workers} GPUs of one model, the cluster has {most} ({listed(models)})"
        offered = max(s[workers - 1] for s in self._memory.values() if len(s) >= workers)
        least = min(variant.memory_mib for variant in self._round.variants[index])
        if least <= offered + MEMORY_TOLERANCE_MIB:
            return None
        who = "the largest GPU offers" if workers == 1 else f"{workers} GPUs of one model offer"
        return "memory", f"memory: needs {mib(least)}, {who} {mib(math.floor(offered))}"

    @cached_property
    def _memory(self) -> dict[str, list[float]]:
        """What each GPU offers, by model, the largest first."""
        found: dict[str, list[float]] = {model: [] for model in self._round.models}
        for site in self._finder.sites.all:
            found[site.model] += [site.memory_mib] * len(site.gpus)
        return {model: sorted(sizes, reverse=True) for model, sizes in found.items()}

    # -- what stands against it -----------------------------------------------------------

    def _category(self, way: Way) -> Category:
        match way.level:
            case Level.FIGURES | Level.TAKEN_FIGURES | Level.UNKNOWN if way.short_mib:
                return "memory"
            case Level.FIGURES | Level.TAKEN_FIGURES:
                return "gsla"
            case Level.JCT | Level.TAKEN_JCT:
                return "jct"
            case Level.UNKNOWN:
                return "unknown"
            case Level.CLOSED:
                return "closed"
            case _:
                return "capacity"

    def _sentence(self, index: int, finding: Finding) -> str:
        way = finding.binding
        category = self._category(way)
        had = ""
        if self._jobs[index].workers > 1 and way.level != Level.POSSIBLE:
            had = f"{finding.possible} of its {self._jobs[index].workers} GPUs can be had; "
        told = {
            "capacity": self._told_capacity,
            "memory": self._told_memory,
            "gsla": self._told_gsla,
            "jct": self._told_jct,
            "unknown": self._told_unknown,
            "closed": self._told_closed,
        }[category](index, finding)
        return f"{category}: {had}{told}"

    def _told_capacity(self, index: int, finding: Finding) -> str:
        way, site = finding.binding, self._site(finding.binding)
        if way.level == Level.POSSIBLE:
            return f"could start {self.place(index, finding)}{self._worth(index, finding)}"
        if way.level == Level.APART:
            return "the other GPUs are held by gangs of another size, which share as a whole only"
        leaver = self._id(way.leaver(site))
        if not way.others(site):
            return f"every GPU is taken, e.g. {site.gpus[0]} by {leaver}"
        how = f"{self._beside(way)} (slowdown {way.slowdown:.2f})"
        return f"every place it accepts is taken, e.g. {how} by {leaver}"

    def _told_memory(self, index: int, finding: Finding) -> str:
        way = finding.binding
        if not way.others(self._site(way)):
            return f"{mib(way.short_mib)} short on {self._site(way).gpus[0]}, even alone"
        return f"{mib(way.short_mib)} short {self._beside(way)}{self._instead(way)}"

    def _told_gsla(self, index: int, finding: Finding) -> str:
        way, job = finding.binding, self._jobs[index]
        parts = []
        if job.gsla is not None and over(way.bound, job.gsla):
            parts.append(f"it would be slowed {compared(way.slowdown, way.bound, job.gsla)}")
        for k, other in enumerate(way.others(self._site(way))):
            if way.too_slow(k):
                limit = self._jobs[other.variant.job].gsla or math.inf
                parts.append(f"{self._id(other)} {compared(*way.slowed(k), limit)}")
        where = self._beside(way) if way.others(self._site(way)) else self._even_alone(finding)
        return f"{where}{self._instead(way)} {' and '.join(parts)}"

    def _told_jct(self, index: int, finding: Finding) -> str:
        way = finding.binding
        gain = "sharing would not let the two end earlier on average"
        return f"{self._beside(way)}{self._instead(way)} {gain} (slowdown {way.slowdown:.2f})"

    def _told_unknown(self, index: int, finding: Finding) -> str:
        names = self._unknown_workloads(finding)
        own = self._jobs[index].workload
        number = f"the {len(names)} workloads" if len(names) > 1 else "the workload"
        return f"no slowdown is known beside {number} it could join; first measure {own} with {names[0]}"

    def _told_closed(self, index: int, finding: Finding) -> str:
        site = self._site(finding.binding)
        held = listed([self._id(o) for o in site.occupants], 2)
        return f"nothing may join {site.gpus[0]}, where running jobs break a limit already ({held})"

    # -- parts of sentences -------------------------------------------------------------

    def _site(self, way: Way) -> Site:
        return self._finder.sites.all[way.site]
