"""Detection of bounds that are broken more often than promised.

Every outcome is a bet against the promise that a bound is broken with a probability of at most
``alpha = 1 - confidence``. For a rate p above alpha, a broken bound multiplies the stake by ``p /
alpha`` and a kept one by ``(1 - p) / (1 - alpha)``: as long as the promise is kept, the expected
factor is at most 1. The stake is spread over several rates p, and over every moment at which a
drift may begin: ``1 / (s (s + 1))`` of it is first bet on outcome s. So the expected capital is at
most 1 at any time, and by Ville's inequality the probability that it ever reaches ``1 / delta`` is
at most delta, however often it is checked (Ramdas, Grünwald, Vovk and Shafer: *Game-theoretic
statistics and safe anytime-valid inference*, Statistical Science 38(4), 2023; Waudby-Smith and
Ramdas: *Estimating means of bounded random variables by betting*, JRSS B 86(1), 2024).

The tested promise is made for every outcome, given any earlier ones. The bounds promise an average
over workloads; so a finding for one workload says that it does worse than promised, and need not
contradict the promise for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.predictors.predictor import FloatArray

_TIMES_PROMISED: Final = np.array([1.5, 2.0, 3.0, 5.0, 8.0])
_HIGHEST_RATE = 0.9


class BoundOutcome(NamedTuple):
    """A bound and the measured slowdown.

    Attributes
    ----------
    workload : str
        The workload that was slowed down.
    upper, measured : float
        The bound, and the measured slowdown.
    confidence : float
        The probability with which the bound was promised to hold.
    """

    workload: str
    upper: float
    measured: float
    confidence: float


@dataclass(frozen=True)
class DriftFinding:
    """How well the promise was kept, by the whole model or for one workload.

    Attributes
    ----------
    workload : str or None
        None for the whole model.
    outcomes, broken : int
        Tested bounds, and how many were broken.
    promised : float
        The largest expected number of broken bounds.
    evidence : float
        The largest capital reached; 1 is no evidence.
    threshold : float
        The capital at which the promise is considered broken.
    noticed : int or None
        The number of outcomes after which it was first reached.
    """

    workload: str | None
    outcomes: int
    broken: int
    promised: float
    evidence: float
    threshold: float
    noticed: int | None

    @property
    def drifted(self) -> bool:
        """Whether the promise is considered broken."""
        return self.noticed is not None

    def __str__(self) -> str:
        who = "all workloads" if self.workload is None else self.workload
        found = f"{self.broken} of {self.outcomes} bounds broken, {self.promised:.1f} promised"
        if not self.drifted:
            return f"{who}: {found}; no drift found"
        return f"{who}: {found}; more often than promised, noticed after {self.noticed} outcomes"


@dataclass(frozen=True)
class Drift:
    """The findings for the model and for each workload, in order of first appearance."""

    model: DriftFinding
    workloads: tuple[DriftFinding, ...]
    false_alarms: float

    @property
    def drifted(self) -> bool:
        """Whether any promise is considered broken."""
        return self.model.drifted or any(found.drifted for found in self.workloads)

    def __str__(self) -> str:
        alarms = [found for found in self.workloads if found.drifted]
        return "\n".join(str(found) for found in (self.model, *alarms))

    def to_data(self) -> dict[str, object]:
        """Return the findings as plain data for JSON."""
        return asdict(self)


def drift(outcomes: Iterable[BoundOutcome], false_alarms: float = 0.01) -> Drift:
    """Test whether bounds are broken more often than promised.

    If the promise is kept for every outcome, the probability that a drift is ever reported is at
    most ``false_alarms``. Half of it is for the model; the j-th workload to appear has ``1 / (j (j
    + 1))`` of the other half.

    Parameters
    ----------
    outcomes : iterable of BoundOutcome
        The outcomes, in the order of measurement.
    false_alarms : float
        The probability of a false alarm, above 0 and below 1.

    Raises
    ------
    InputError
        When a probability is not between 0 and 1 or a slowdown is not a number.
    """
    if not 0 < false_alarms < 1:
        raise InputError(f"must be above 0 and below 1, got {false_alarms:g}", "false_alarms")
    known = [_checked(outcome, k) for k, outcome in enumerate(outcomes)]
    by_workload: dict[str, list[BoundOutcome]] = {}
    for outcome in known:
        by_workload.setdefault(outcome.workload, []).append(outcome)
    half = false_alarms / 2
    each = tuple(
        _finding(name, found, half / (j * (j + 1)))
        for j, (name, found) in enumerate(by_workload.items(), start=1)
    )
    return Drift(_finding(None, known, half), each, false_alarms)


def _checked(outcome: BoundOutcome, k: int) -> BoundOutcome:
    if not 0 < outcome.confidence < 1:
        rule = f"must be above 0 and below 1, got {outcome.confidence:g}"
        raise InputError(rule, f"outcomes[{k}].confidence")
    for name in ("upper", "measured"):
        if not np.isfinite(getattr(outcome, name)):
            raise InputError("must be a finite number", f"outcomes[{k}].{name}")
    return outcome


def _finding(workload: str | None, outcomes: Sequence[BoundOutcome], chance: float) -> DriftFinding:
    broken = np.array([found.measured > found.upper for found in outcomes], dtype=np.bool_)
    alpha = np.array([1 - found.confidence for found in outcomes], dtype=np.float64)
    capital = _capital(broken, alpha)
    reached = np.flatnonzero(capital >= 1 / chance)
    return DriftFinding(
        workload=workload,
        outcomes=len(broken),
        broken=int(broken.sum()),
        promised=float(alpha.sum()),
        evidence=float(capital.max(initial=1.0)),
        threshold=1 / chance,
        noticed=int(reached[0]) + 1 if len(reached) else None,
    )


def _capital(broken: np.ndarray, alpha: FloatArray) -> FloatArray:
    """Return the capital after each outcome: the bets so far, and the part not yet bet."""
    capital = np.empty(len(alpha))
    at_stake = np.zeros(len(_TIMES_PROMISED))
    for t, (miss, promised) in enumerate(zip(broken, alpha, strict=True)):
        rate = np.maximum(promised, np.minimum(_HIGHEST_RATE, promised * _TIMES_PROMISED))
        factor = rate / promised if miss else (1 - rate) / (1 - promised)
        at_stake = (at_stake + 1 / ((t + 1) * (t + 2))) * factor
        capital[t] = at_stake.mean() + 1 / (t + 2)
    return capital
