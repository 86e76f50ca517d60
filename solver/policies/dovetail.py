"""Dovetail's own policy: every round's starts chosen together, by what each is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.solver.policies.dovetail_market import Market, believed_ends
from dovetail.solver.policies.dovetail_patience import Patience
from dovetail.solver.policies.dovetail_round import Chosen, RoundSolver
from dovetail.solver.policies.dovetail_starts import carry_out, starts
from dovetail.solver.policies.dovetail_ways import WayBook
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.policy import NOTHING, Decision, RoundProof
from dovetail.solver.policies.state import State


@dataclass
class Dovetail:
    """TODO"""

    gpu_price: float = 0.0
    patience_s: float = 86400.0
    window: int = 32
    time_limit_s: float = 1.0
    _solver: RoundSolver = field(init=False)
    _patience: Patience = field(init=False)
    _book: WayBook | None = field(default=None, init=False)
    _asked_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._solver = RoundSolver(self.time_limit_s)
        self._patience = Patience(self.patience_s)

    def decide(self, state: State) -> Decision:
        """Return the starts whose gains sum to the most."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        ends = believed_ends(state)
        reserved = self._serve_overdue(draft, ends)
        market = Market(draft, self._ways(state), ends, reserved, self.gpu_price, self.window)
        idle = {kind: len(gpus) for kind, gpus in market.idle.items()}
        chosen = self._solver.solve(list(starts(market)), idle)
        for option in chosen.options:
            carry_out(option.detail, draft, market)
        return draft.decision(self._wake(state), _proof(chosen, market))

    def _ways(self, state: State) -> WayBook:
        if self._book is None:
            self._book = WayBook(state)
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

    def _wake(self, state: State) -> float | None:
        """Return the moment at which the next job becomes overdue, once."""
        due = self._patience.next_s(state)
        if due == self._asked_s:
            return None
        self._asked_s = due
        return due


def _proof(chosen: Chosen, market: Market) -> RoundProof:
    largest = max(abs(chosen.bound), abs(chosen.value))
    gap = (chosen.bound - chosen.value) / largest if largest else 0.0
    return RoundProof(chosen.value, chosen.bound, gap, len(market.jobs) + len(market.rest))
