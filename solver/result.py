"""The outcome of a round, and the prices that the next round may start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.formulations.slowdowns import KnownSlowdowns
from dovetail.instances._frames import html
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan, Status, Stopped
from dovetail.solver.pairing.result import Prices
from dovetail.solver.types import Proof


@dataclass(frozen=True)
class RoundPrices:
    """The prices of a round's jobs under an objective.

    Attributes
    ----------
    objective : str
        The name of the objective.
    jobs : tuple of str
        The ids of the jobs.
    prices : Prices
        The prices of these jobs, in their order.
    """

    objective: str
    jobs: tuple[str, ...]
    prices: Prices

    def of(self, instance: Instance, objective: str) -> Prices | None:
        """Return the prices of another round's jobs; None under another objective."""
        if objective != self.objective:
            return None
        place = {job: k for k, job in enumerate(self.jobs)}
        index = [place.get(job.id, -1) for job in instance.jobs]
        return self.prices.reindexed(np.array(index, dtype=np.int64))


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of a round.

    Attributes
    ----------
    status : str
        ``optimal`` (gap <= 1e-6), ``feasible``, or ``unknown`` if an answer failed its check and no
        job starts.
    stopped : str
        Why the search ended: ``complete``, ``time_limit``, ``gap_reached``,
        ``interrupted`` or ``error``.
    plan : Plan
        The plan, which the independent checker has passed.
    objective : float
        The value of the plan as computed by the checker.
    bound : float or None
        Proven bound on the value of any plan; None if there is none.
    gap : float or None
        |bound - objective| / max(|bound|, |objective|).
    runtime_s : float
        Seconds from the call to the checked plan.
    proof : callable or None
        Checks the certificate of the bound, if the solver provided one (see ``verify``).
    prices : RoundPrices or None
        Prices that the next round may start from, if the solver provided them (``matching`` under
        ``throughput``, ``jct`` and ``completion``).
    book : Book or None
        The known combinations, for a next round with the same slowdowns.
    """

    status: Status
    stopped: Stopped
    plan: Plan
    objective: float
    bound: float | None
    gap: float | None
    runtime_s: float
    proof: Proof | None = None
    prices: RoundPrices | None = None
    book: KnownSlowdowns | None = None

    def __repr__(self) -> str:
        """Return status and plan; the data for later rounds would fill many screens."""
        return f"<Result {self.status} ({self.stopped}) in {self.runtime_s:.2g} s: {self.plan!r}>"

    def _repr_html_(self) -> str:
        return html(self, self.plan.to_frame())
