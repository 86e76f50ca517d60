"""Who is where under a plan: GPUs that hold the same jobs form a *site*."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.formulations.rounds import Round, Variant
from dovetail.instances.plan import Assignment


@dataclass(frozen=True)
class Occupant:
    """A placed job on a GPU; the share of one that starts in this plan may still be changed."""

    variant: Variant
    share: int | None
    starting: bool


@dataclass(frozen=True)
class Site:
    """GPUs of one model and size that hold the same jobs.

    ``memory_mib`` is what the jobs on one of them may use together; ``open`` tells whether a
    job may join (constraint 5 of the round problem).
    """

    model: str
    memory_mib: float
    occupants: tuple[Occupant, ...]
    open: bool
    gpus: tuple[str, ...]


class Sites:
    """The GPUs of an instance under a plan.

    Parameters
    ----------
    compiled : Round
        The instance.
    assignments : iterable of Assignment
        A valid plan; running jobs are taken from the instance.

    Attributes
    ----------
    all : tuple of Site
        Every site, in the order of its first GPU.
    gpus_of, of : mapping
        The GPUs and the sites of each placed job, by its index.
    """

    def __init__(self, compiled: Round, assignments: Iterable[Assignment]) -> None:
        self.round = compiled
        index = {job.id: k for k, job in enumerate(compiled.jobs)}
        starting = {
            index[row.job]: row for row in assignments if not compiled.jobs[index[row.job]].running
        }
        self.gpus_of: Mapping[int, tuple[str, ...]] = {
            k: starting[k].gpus if k in starting else job.gpus or ()
            for k, job in enumerate(compiled.jobs)
            if job.running or k in starting
        }
        self.all = self._grouped(self._occupants(starting))
        self.of: Mapping[int, Sequence[Site]] = self._by_job()

    def _occupants(self, starting: Mapping[int, Assignment]) -> Mapping[str, list[Occupant]]:
        held: dict[str, list[Occupant]] = defaultdict(list)
        for gpu, residents in self.round.residents.items():
            held[gpu] += [Occupant(r.variant, r.share, starting=False) for r in residents]
        for k, row in starting.items():
            variant = self._variant(k, row.sub_batch)
            for gpu, share in zip(row.gpus, row.shares, strict=True):
                held[gpu].append(Occupant(variant, share, starting=True))
        return held

    def _variant(self, job: int, sub_batch: int | None) -> Variant:
        variants = self.round.variants[job]
        if sub_batch is None:
            return variants[0]
        return next(variant for variant in variants if variant.sub_batch == sub_batch)

    def _grouped(self, held: Mapping[str, list[Occupant]]) -> tuple[Site, ...]:
        closed = {gpu for c in self.round.classes if not c.open for gpu in c.gpus}
        reserve = self.round.instance.cluster.reserve_mib
        members: dict[tuple[str, float, tuple[Occupant, ...], bool], list[str]] = defaultdict(list)
        for gpu, place in self.round.instance.places.items():
            occupants = tuple(held.get(gpu, ()))
            memory = place.gpu.memory_mib - reserve
            members[place.gpu.model, memory, occupants, gpu not in closed].append(gpu)
        return tuple(Site(*kind, tuple(gpus)) for kind, gpus in members.items())

    def _by_job(self) -> Mapping[int, Sequence[Site]]:
        found: dict[int, list[Site]] = defaultdict(list)
        for site in self.all:
            for occupant in site.occupants:
                found[occupant.variant.job].append(site)
        return found
