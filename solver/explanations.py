"""Why jobs wait, and what would let them start.

The *reason* of a waiting job is what stands against its most promising GPUs while everybody
else stays where the plan has put them (shares of jobs that start in the same plan may change).
A gang of W looks at the W best GPUs of one model, and the last of them decides.

========  ==================================================================================
size      no GPU model of the cluster has as many GPUs as the gang has workers
memory    the GPUs have too little memory for the job, or for it and those it would join
gsla      it, or somebody it would join, would be slowed more than its owner accepts
jct       sharing would not let the two end earlier on average (objective ``jct`` only)
capacity  it could run, but the places that it could take are held by other jobs
unknown   no slowdown is known beside anybody whom it could join
closed    running jobs on the GPU break a limit already, so that nothing may join
========  ==================================================================================

Most promising first: GPUs where nothing stands against the job; those where a gSLA or memory
figure does, by the sum of the relative differences; the jct rule; then full GPUs, as they
would be with one job less and in the same order; unknown slowdowns; gangs that share only as
a whole; closed GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment, ObjectiveName, Waiting
from dovetail.solver._findings import Finder
from dovetail.solver._wording import Wording


def reasons(
    instance: Instance, assignments: Sequence[Assignment], objective: ObjectiveName
) -> tuple[Waiting, ...]:
    """Return why each job that is not placed waits, in the order of the instance.

    Parameters
    ----------
    instance : Instance
        The round; preempted before if running jobs may move.
    assignments : sequence of Assignment
        A valid plan for it.
    objective : str
        What the plan was made for.
    """
    compiled = Round(instance)
    finder = Finder(compiled, assignments, jct=objective == "jct")
    wording = Wording(finder, JobValues(compiled, objective))
    found = []
    for k, job in enumerate(compiled.jobs):
        if k not in finder.sites.gpus_of:
            _, reason, nearest = wording.reason(k)
            found.append(Waiting(job=job.id, reason=reason, nearest=nearest))
    return tuple(found)
