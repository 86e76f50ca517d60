"""True slowdowns, memory clashes and power on simulated GPUs, given the jobs on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.formulations.rules import room_mib, slowdown_alone
from dovetail.instances.sets import set_slowdown
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.solver.policies import Job, Start, State

Member = tuple[int, int | None]
"""A workload and its share on the GPU."""


class Physics:
    """The hidden truth of a simulated cluster.

    Parameters
    ----------
    state : State
        Jobs and GPUs.
    truth : SlowdownTable
        The true slowdowns of pairs; those of three and more follow by ``set_slowdown``.
    """

    def __init__(self, state: State, truth: SlowdownTable) -> None:
        self._state = state
        self._truth = truth

    def slowdown(self, job: Job) -> float:
        """Return the job slowdown: the largest over its GPUs, times that of its sub-batch."""
        state = self._state
        stretch: float = state.modes[job.workload][job.mode].stretch
        worst = 0.0
        for k, gpu in enumerate(job.gpus):
            residents = state.residents[gpu]
            mine: Member = (job.workload, job.shares[k] if job.shares else None)
            if len(residents) == 1:
                alone = slowdown_alone(state.workloads[job.workload], mine[1]) or 1.0
                worst = max(worst, alone)
            else:
                others = [_member(other, gpu) for other in residents if other is not job]
                worst = max(worst, self._beside(gpu, mine, others))
        return worst * stretch

    def cannot_run(self, start: Start) -> list[tuple[int, Job]]:
        """Return the (GPU, resident) pairs for which a starting job would run out of memory.

        If a GPU cannot hold the job even alone, the pair names the job itself.
        """
        return [
            (gpu, other)
            for k, gpu in enumerate(start.gpus)
            for other in self._obstacles(start, k, gpu)
        ]

    def power_w(self, gpu: int) -> float:
        """Return the power of a GPU in watts: 0 if it is idle, NaN if it is unknown."""
        residents = self._state.residents[gpu]
        if not residents:
            return 0.0
        if len(residents) == 1:
            return self._state.workloads[residents[0].workload].power_w or math.nan
        if len(residents) > 2:
            return math.nan
        (a, x), (b, y) = (_member(job, gpu) for job in residents)
        caps = self._truth.caps_place.get((x, y))
        model = self._state.machines.model[gpu]
        return math.nan if caps is None else float(self._truth.power_w[model, caps, a, b])

    def _obstacles(self, start: Start, k: int, gpu: int) -> list[Job]:
        state = self._state
        job = start.job
        residents = state.residents[gpu]
        need = state.modes[job.workload][start.mode].memory_mib
        need += sum(state.needs_mib(other) for other in residents)
        if need > room_mib(state.machines.memory_mib[gpu]):
            return residents or [job]
        mine: Member = (job.workload, start.shares[k] if start.shares else None)
        return [
            other for other in residents if math.isnan(self._pair(gpu, mine, _member(other, gpu)))
        ]

    def _beside(self, gpu: int, mine: Member, others: Sequence[Member]) -> float:
        if len(others) == 1:
            return self._pair(gpu, mine, others[0])
        members = [mine, *others]
        pairs = [[self._pair(gpu, a, b) for b in members] for a in members]
        return float(set_slowdown(np.array(pairs))[0])

    def _pair(self, gpu: int, mine: Member, other: Member) -> float:
        caps = self._truth.caps_place.get((mine[1], other[1]))
        if caps is None:
            return math.nan
        return self._truth.rows[self._state.machines.model[gpu]][caps][mine[0]][other[0]]


def _member(job: Job, gpu: int) -> Member:
    return job.workload, job.share_on(gpu)
