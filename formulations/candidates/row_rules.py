"""The rule book (``rules``) on rows of candidate groups: memory, hosts and accepted slowdowns."""

from __future__ import annotations

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.rows import CandidateRows, Rows
from dovetail.formulations.rounds import Round
from dovetail.formulations.rules import MEMORY_TOLERANCE_MIB, most_bound
from dovetail.formulations.slowdowns import Colocations
from dovetail.formulations.values import JobValues


class RowRules:
    """The variants of the jobs of a round as columns, and the rules on rows of them.

    Parameters
    ----------
    compiled : Round
        The round.
    values : JobValues
        The objective.
    """

    def __init__(self, compiled: Round, values: JobValues) -> None:
        self.round = compiled
        self.values = values
        self.variants = tuple(v for variants in compiled.variants for v in variants)
        jobs = compiled.jobs
        self.job = compiled.variant_job
        self.memory = np.array([v.memory_mib for v in self.variants])
        self.slowdown_factor = compiled.variant_factor
        self.stretched = bool((self.slowdown_factor != 1).any())
        self.accepted = most_bound(jobs.gsla)[self.job]
        self.latency = jobs.latency[self.job]
        self.workers = jobs.workers[self.job]
        self.pending = ~jobs.running[self.job]
        self.first_of_job = compiled.first_variant
        self.room = np.array([c.memory_mib for c in compiled.classes]) + MEMORY_TOLERANCE_MIB
        self._host = _slowdown_on_hosts(compiled)

    def candidate_rows(
        self, gpu_class: Ints, first: Ints, count: Ints, known: Colocations, held: int
    ) -> CandidateRows:
        """Return the candidates of colocations whose first ``held`` jobs already run there."""
        return CandidateRows(
            index=np.arange(len(known)),
            gpu_class=gpu_class,
            first=first,
            count=count,
            twin=known.twins(held),
            share=known.share,
            slowdown=known.slowdown,
            upper=known.upper,
            tail=known.tail,
            power_w=known.power_w,
        )

    def bound(
        self, candidates: CandidateRows, place: int, candidate: Ints, variant: Ints
    ) -> Floats:
        """Return the slowdown bound of the job in one place that its gSLA limits, for each row.

        Parameters
        ----------
        candidates : CandidateRows
            The candidates.
        place : int
            The place.
        candidate, variant : (n,) int
            The candidate of each row, and the job variant in that place.
        """
        bound = candidates.upper[:, place].take(candidate)
        if self.latency.any():
            tail = candidates.tail[:, place].take(candidate)
            bound = np.where(self.latency.take(variant), tail, bound)
        if self._host is not None:
            node, job = self._node(candidates.gpu_class[candidate]), self.job[variant]
            bound = bound * self._host[node, job]
        return bound * self.slowdown_factor.take(variant) if self.stretched else bound

    def rows(self, candidates: CandidateRows, candidate: Ints, variant: Ints) -> Rows:
        """Return the groups with these variants in the places of the candidates, (n, size)."""
        gpu_class = candidates.gpu_class[candidate]
        slowdown = candidates.slowdown[candidate] * self.slowdown_factor[variant]
        if self._host is not None:
            job = self.job[variant]
            # A measured slowdown already contains the effect of the host.
            measured = ~np.isnan(self.round.jobs.slowdown[job])
            factor = self._host[self._node(gpu_class)[:, None], job]
            slowdown = slowdown * np.where(measured, 1.0, factor)
        return Rows(
            gpu_class, variant, candidates.share[candidate], slowdown, candidates.power_w[candidate]
        )

    def _node(self, gpu_class: Ints) -> Ints:
        """Return the tight node of each class, -1 for none."""
        hosts = self.round.hosts
        assert hosts is not None
        return np.asarray(hosts.class_node[gpu_class])


def _slowdown_on_hosts(compiled: Round) -> Floats | None:
    """Return how much each job is slowed on each node and on none (the last row).

    Jobs that start beside others stay within the capacity left, and are not slowed.
    """
    if compiled.hosts is None:
        return None
    running = np.where(compiled.jobs.running, compiled.hosts.slowdown, 1.0)
    return np.vstack([running, np.ones(len(compiled))])
