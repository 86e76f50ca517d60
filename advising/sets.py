"""Sets of jobs that may share a GPU under caps that each job has from its start to its end.

A kind of work gets the smallest of the shares ``100 / n``, rounded down, at which it alone is not
slowed by more than a rule says: work that is mostly idle takes a small share, and leaves room for
more co-runners. A set may share if its shares sum to at most 100, its memory fits and no job in it
is slowed beyond the limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.sharing import RESERVE_MIB, SharingLaw
from dovetail.advising.work import CASES, Bools, Ints, Work

RULES: Final = (1.0, 1.1, 1.25)
"""The largest slowdowns that are tried for a job that has a cap and no co-runner."""

Members = tuple[int, ...]
"""The kinds of the jobs on a GPU, in order."""


class JoinedKinds(NamedTuple):
    """A set of jobs that may share a GPU.

    Attributes
    ----------
    members : tuple of int
        Their kinds, in order.
    cost : float
        The sum of their slowdowns.
    free_mib : float
        The memory that they leave.
    """

    members: Members
    cost: float
    free_mib: float


def pools_of(work: Work) -> Ints:
    """Return the number of each kind's pool: GPU model, GPUs and nodes of kinds that may share."""
    models = np.unique(work.models, return_inverse=True)[1]
    rows = np.stack([models, work.gpus, work.nodes], axis=1)
    return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), np.int64)


def cap_choices(able: Bools, limit: float, most: int, laws: Sequence[SharingLaw]) -> Iterator[Ints]:
    """Yield the shares that kinds start with, shape (kinds,), each choice once; 0 for no cap.

    Choices are the rules and the numbers of jobs that shares leave room for. Those for two on a GPU
    are left out.

    Parameters
    ----------
    able : (kinds,) bool
        Which kinds may share at all.
    limit : float
        The slowdown that owners accept.
    most : int
        The most jobs on a GPU.
    laws : sequence of SharingLaw
        The law in each case whose figures are to decide.
    """
    seen = set()
    for level in _levels(most):
        for law in laws:
            for rule in RULES:
                shares = np.where(able, _least_shares(law, min(rule, limit), level, len(able)), 0)
                if shares.any() and shares.tobytes() not in seen:
                    seen.add(shares.tobytes())
                    yield shares


def _levels(most: int) -> list[int]:
    """Return numbers of jobs on a GPU that shares leave room for: powers of 2, and the most."""
    powers = (2**k for k in range(2, most.bit_length() + 1))
    return [*(level for level in powers if level < most), most] if most > 2 else []


def _least_shares(law: SharingLaw, rule: float, level: int, kinds: int) -> Ints:
    """Return the smallest share of each kind for up to ``level`` jobs on a GPU within a rule."""
    found = np.zeros(kinds, np.int64)
    for number in range(2, level + 1):
        share = 100 // number
        with np.errstate(invalid="ignore"):
            found[law.alone(np.full(kinds, share)) <= rule] = share
    return found


class SharingSets:
    """Which sets of kinds may share a GPU in a case, with given shares; all answers are kept.

    Parameters
    ----------
    work : Work
        The work.
    case : int
        The case, a position in ``CASES``.
    law : SharingLaw
        The law in this case.
    shares : (kinds,) int
        The share of each kind in per cent; 0 if it may not share.
    limit : float
        The slowdown that owners accept.
    most : int
        The most jobs on a GPU.
    """

    def __init__(
        self, work: Work, case: int, law: SharingLaw, shares: Ints, limit: float, most: int
    ) -> None:
        self._law, self._limit, self._most = law, limit, most
        self.shares = shares
        self._share: list[int] = shares.tolist()
        self._mib: list[float] = work.memory_mib[case].tolist()
        self._card: list[float] = (work.card_mib - RESERVE_MIB).tolist()
        # No record tells a service's tail latency: in the case low it shares with services only.
        apart = work.service if case == CASES.index("low") else np.zeros_like(work.service)
        self._group: list[bool] = apart.tolist()
        self._alone: list[float] = np.where(
            shares > 0, law.alone(np.maximum(shares, 1)), 1.0
        ).tolist()
        self._found: dict[Members, tuple[float, ...]] = {}
        self._joined: dict[tuple[Members, int], JoinedKinds | None] = {}

    def slowdowns(self, members: Members) -> tuple[float, ...]:
        """Return the slowdown of each job of a set, or of one alone at its share."""
        if len(members) == 1:
            return (self._alone[members[0]],)
        if members not in self._found:
            self._ask([members])
        return self._found[members]

    def joined(self, sets: Sequence[Members], kind: int) -> list[JoinedKinds | None]:
        """Return each set with a job more; None if that may not share.

        Parameters
        ----------
        sets : sequence of tuple of int
            Sets of kinds of the same pool as ``kind``, with shares.
        kind : int
            The kind of the other job.
        """
        known = self._joined
        new = [members for members in sets if (members, kind) not in known]
        if new:
            grown = {members: tuple(sorted((*members, kind))) for members in new}
            self._ask([one for one in grown.values() if one not in self._found and self._fits(one)])
            for members, one in grown.items():
                known[members, kind] = self._judged(one)
        return [known[members, kind] for members in sets]

    def free_mib(self, members: Members) -> float:
        """Return the memory that a set leaves, NaN if unknown."""
        need = sum(self._mib[kind] for kind in members)
        return min(self._card[kind] for kind in members) - need

    def _fits(self, members: Members) -> bool:
        return (
            len(members) <= self._most
            and sum(self._share[kind] for kind in members) <= 100
            and len({self._group[kind] for kind in members}) == 1
            and self.free_mib(members) >= 0
        )

    def _judged(self, members: Members) -> JoinedKinds | None:
        slowdowns = self._found.get(members)
        if slowdowns is None or not max(slowdowns) <= self._limit or not self._fits(members):
            return None
        return JoinedKinds(members, sum(slowdowns), self.free_mib(members))

    def _ask(self, sets: Sequence[Members]) -> None:
        by_size = defaultdict(list)
        for members in dict.fromkeys(sets):
            by_size[len(members)].append(members)
        for same in by_size.values():
            kinds = np.array(same, np.int64)
            found = self._law.slowdowns(kinds, self.shares[kinds]).tolist()
            self._found.update(zip(same, map(tuple, found), strict=True))
