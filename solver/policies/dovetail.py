"""Dovetail's own policy: every round's starts chosen together, by what each is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dovetail.instances.plan import ObjectiveName
from dovetail.solver.policies.dovetail_market import Market
from dovetail.solver.policies.dovetail_outlook import believed_ends
from dovetail.solver.policies.dovetail_patience import Patience
from dovetail.solver.policies.dovetail_round import Chosen, Option, RoundSolver
from dovetail.solver.policies.dovetail_starts import carry_out, starts
from dovetail.solver.policies.dovetail_ways import WayBook
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision, RoundProof
from dovetail.solver.policies.state import State

_AGAIN_S = 1.0
"""Seconds after which gangs that lost a host to another start are looked at again."""


@dataclass
class Dovetail:
    """Choose all starts of a round together, by the completion time that each is worth.

    Every start that is possible now has a value in seconds of completion time
    (``dovetail_market``): alone on idle GPUs, two together on these, or beside a running job.
    Where GPUs are short, their price is what the waiting jobs would pay (``dovetail_prices``). The
    best choice of starts is then found with proof (``dovetail_round``). What was measured on
    running pairs overrides what is predicted, gSLAs are checked against upper bounds, and no
    sharing is begun that is believed to end later than the last job would without it.

    Jobs that run stay where they are. ``Decision.proof`` is of the starts that were offered to
    the round: of the jobs that took part (``RoundProof.jobs``), and of gangs beside several
    running jobs only one each (``dovetail_spread``). What patience starts comes before it.

    The wait is bounded. A job that has waited for its patience P (``patience_s`` and
    ``patience_stretch`` times what it is believed to need) is given the GPUs that are believed to
    be idle first, unless these are kept for others who have waited for longer; on them nobody
    starts who is not believed to end in time. So while at most a tenth of the GPUs is kept, a job
    waits for no longer than P and until those end that were on its GPUs then or believed to be in
    time. Where more jobs are overdue than fit into that tenth, they are served one after the
    other, the one that has waited longest first: with n before it, and D the longest that any job
    is on GPUs, a job waits for P + (n + 1) D at most.

    Attributes
    ----------
    gpu_price : float
        Seconds of completion time that a GPU second is worth where nobody waits for it. 0:
        jobs run alone while GPUs are idle. Higher: they share where that saves enough GPU time,
        and more of them may end later than the last would have.
    margin : float
        What the excess over 1 of predicted upper bounds is multiplied by where gSLAs are checked,
        until ten pairs have been measured. From then on it is what 9 in 10 of the measured pairs
        would have needed, and at least 1.
    patience_s : float
        Seconds after which the shortest job is given GPUs; infinite = never.
    patience_stretch : float
        How often a job waits for its own time, as believed, in addition.
    window : int
        How many more waiting jobs take part in a round than there are idle GPUs: the first of
        the queue (``dovetail_outlook.queue_of``).
    time_limit_s : float
        Seconds for the search in a round, after which the best choice so far is taken with its
        bound.

    Raises
    ------
    ValueError
        When an option is out of range.
    """

    objective: ClassVar[ObjectiveName] = "completion"

    gpu_price: float = 0.0
    margin: float = 1.5
    patience_s: float = 86400.0
    patience_stretch: float = 10.0
    window: int = 32
    time_limit_s: float = 1.0
    _solver: RoundSolver = field(init=False)
    _patience: Patience = field(init=False)
    _book: WayBook | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        least_of = {
            "gpu_price": 0,
            "margin": 0,
            "patience_s": 0,
            "patience_stretch": 0,
            "window": 1,
            "time_limit_s": 0,
        }
        for name, least in least_of.items():
            value = getattr(self, name)
            if not value >= least or (name in ("gpu_price", "margin") and math.isinf(value)):
                raise ValueError(f"{name} must be >= {least}, got {value}")
        self._solver = RoundSolver(self.time_limit_s)
        self._patience = Patience(self.patience_s, self.patience_stretch)

    @property
    def kept(self) -> frozenset[int]:
        """The GPUs that are kept for overdue jobs."""
        return frozenset(gpu for kept in self._patience.kept.values() for gpu in kept.gpus)

    def decide(self, state: State) -> Decision:
        """Return the starts whose gains sum to the most."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        ends = believed_ends(state)
        reserved = self._serve_overdue(draft, ends)
        market = Market(draft, self._ways(state), ends, reserved, self.gpu_price, self.window)
        idle = {kind: len(gpus) for kind, gpus in market.idle.items()}
        options = list(starts(market))
        chosen = self._solver.solve(options, idle)
        for option in chosen.options:
            carry_out(option.detail, draft, market)
        if not state.running and draft.idle_total == sum(state.idle_count):
            _start_first(draft, market)
        again = _left_over(options, chosen)
        wake_s = state.now + _AGAIN_S if again else self._patience.next_s(state)
        return draft.decision(wake_s, _proof(chosen, market))

    def _ways(self, state: State) -> WayBook:
        if self._book is None:
            self._book = WayBook(state, self.margin)
        self._book.refresh()
        return self._book

    def _serve_overdue(self, draft: Draft, ends: dict[int, float]) -> dict[int, float]:
        """Start overdue jobs whose GPUs are idle; return the GPUs kept for the others."""
        reserved = {}
        for job, kept in self._patience.renew(draft.state, ends):
            if all(draft.is_idle(gpu) for gpu in kept.gpus):
                draft.start(job, kept.gpus)
                speed = draft.state.speed[draft.state.machines.model[kept.gpus[0]]][job.workload]
                ends[job.number] = draft.state.now + job.remaining(draft.state.now) / speed
            else:
                reserved.update(dict.fromkeys(kept.gpus, kept.until_s))
        return reserved


def _left_over(options: Sequence[Option], chosen: Chosen) -> bool:
    """Tell whether a start was chosen that may have kept a gang from its hosts."""
    begun = {job for option in chosen.options for job in option.jobs}
    return bool(begun) and any(
        len(option.hosts) > 1 and begun.isdisjoint(option.jobs) for option in options
    )


def _start_first(draft: Draft, market: Market) -> None:
    """Start the first job that fits, whatever it is worth: nothing else would ever happen."""
    for job in market.jobs:
        gpus = idle_gpus(draft, job)
        if gpus is not None:
            draft.start(job, gpus)
            return


def _proof(chosen: Chosen, market: Market) -> RoundProof:
    largest = max(abs(chosen.bound), abs(chosen.value))
    gap = (chosen.bound - chosen.value) / largest if largest else 0.0
    return RoundProof(chosen.value, chosen.bound, gap, len(market.jobs))
