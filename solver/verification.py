"""Checks a result against its instance again, without trusting its solver."""

from __future__ import annotations

import math

from dovetail.formulations.objectives import Objective, job_values
from dovetail.formulations.rounds import Round
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import VerificationError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Verification
from dovetail.solver.result import Result

_TOLERANCE = 1e-9


def verify(instance: Instance, result: Result, objective: Objective | None = None) -> Verification:
    """Check the plan of a result, and the certificate of its bound if there is one.

    The checker checks the plan, its claims and its value. The bound is proven again if the solver
    provided a certificate: the problem is formulated again from the instance, and
    ``dovetail.solver.certificate_errors`` checks the duals against every pair of jobs. Integer
    programs provide none; another solver can then be used for its bound.

    Parameters
    ----------
    instance : Instance
        The round.
    result : Result
        The outcome of the round.
    objective : str or callable, optional
        The objective of the result, if it is a subclass of ``JobValues``.

    Returns
    -------
    Verification
        The result of the check.

    Raises
    ------
    VerificationError
        One line with the first check that fails.
    """
    report = check(instance, result.plan)
    if not report.valid:
        raise VerificationError(f"the plan is not valid: {report.violations[0]}")
    value = result.plan.objective
    claimed = None if value is None else value.bound
    if result.proof is None or claimed is None:
        return Verification(certificate="none")
    pending = instance.preempted() if result.plan.preempt else instance
    values = job_values(Round.of(pending), objective or result.plan.judged_by)
    proven = result.proof(values)
    if proven.errors:
        raise VerificationError(f"the certificate of the bound is wrong: {proven.errors[0]}")
    bound = values.sign * proven.bound
    if not math.isclose(bound, claimed, rel_tol=_TOLERANCE):
        raise VerificationError(
            f"the certificate proves a bound of {bound:.10g}, not {claimed:.10g}"
        )
    jobs = len(instance.jobs)
    return Verification(certificate="checked", pairs=jobs * (jobs - 1) // 2)
