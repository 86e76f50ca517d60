"""Every group of jobs that may hold one GPU together, as arrays.

A *group* is a set of (job variant, share) on a GPU of one class, with the slowdown each job
has there. Module ``listing`` makes them from a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.rounds import Round, Variant

NO_SHARE = 0
"""Stands for "no cap" in share arrays."""


@dataclass(frozen=True)
class Groups:
    """All candidate groups, a row each; their members flattened and ordered by job.

    Attributes
    ----------
    round : Round
        What they were made from.
    gpu_class : (n,) int
        Index of the class of GPUs that the group can be on.
    start : (n + 1,) int
        Members of group g are the positions ``start[g]:start[g + 1]`` of the next arrays.
    variant : (m,) int
        Index into ``variants``.
    job : (m,) int
        Index of the job.
    share : (m,) int
        The cap, ``NO_SHARE`` where there is none.
    slowdown : (m,) float
        Slowdown of the job on this GPU, the sub-batch's stretch included.
    power_w : (n,) float
        Power of the GPU; NaN where unknown.
    gain : (m,) float
        What the job gains there under the objective; the least over a gang's GPUs counts.
    value : (n,) float
        What each GPU with the group is worth in addition.
    variants : tuple of Variant
        What ``variant`` counts.
    complete : bool
        Whether none is missing that some best plan may need; False where the time was up. Then
        the best choice of these groups is a plan, but bounds nothing.
    """

    round: Round
    gpu_class: Ints
    start: Ints
    variant: Ints
    job: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats
    gain: Floats
    value: Floats
    variants: tuple[Variant, ...]
    complete: bool = True

    def __len__(self) -> int:
        return len(self.gpu_class)

    @property
    def sizes(self) -> Ints:
        """The number of jobs of each group, (n,)."""
        return np.diff(self.start)

    @property
    def group_of_member(self) -> Ints:
        """The group that each member belongs to, (m,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def model(self) -> Ints:
        """The index of the GPU model that each member would be on, (m,)."""
        return np.asarray(self.round.class_model[self.gpu_class[self.group_of_member]])

    def take(self, which: NDArray[np.bool_]) -> Groups:
        """Return the groups that a mask names, (n,)."""
        member = which[self.group_of_member]
        return replace(
            self,
            gpu_class=self.gpu_class[which],
            start=np.concatenate([[0], np.cumsum(self.sizes[which])]).astype(np.int64),
            variant=self.variant[member],
            job=self.job[member],
            share=self.share[member],
            slowdown=self.slowdown[member],
            power_w=self.power_w[which],
            gain=self.gain[member],
            value=self.value[which],
        )

    def members(self, group: int) -> range:
        """Return the positions of the members of one group."""
        return range(int(self.start[group]), int(self.start[group + 1]))


def idle_counts(groups: Groups) -> Ints:
    """Return the choice in which running jobs stay and no job starts, (n,)."""
    compiled = groups.round
    untouched = compiled.class_residents[groups.gpu_class] == groups.sizes
    return np.where(untouched, compiled.class_sizes[groups.gpu_class], 0)
