"""How long the jobs of a node that does not answer may run: arithmetic without a common clock.

Every answer of an agent carries the agent's clock, and a renewal quotes that. The agent lets its
jobs run until ``lease_s`` after the quoted moment, however late the renewal arrives. The controller
received that moment later than it was, by its own clock, so the lease ends no later than
``lease_s`` after the receipt, but for the rates of the two clocks. Every answer also says until
when jobs may run by what earlier controllers granted; before the first answer, a file does.

Source: C. G. Gray and D. R. Cheriton, Leases: An Efficient Fault-Tolerant Mechanism for
Distributed File Cache Consistency, SOSP 1989.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dovetail.executor.pools.lease import KILL_S
from dovetail.executor.system.small_files import write_kept
from dovetail.instances._record import Positive, Record
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data

LEASE_S: Final = 15.0
"""Seconds that jobs run on without a renewal, unless asked otherwise."""

LEAST_S: Final = 5.0
"""The shortest lease: an idle agent is renewed every two seconds, and a renewal may be lost."""

DRIFT: Final = 0.01
"""By how much two machines' clocks may differ in rate: far more than they do."""

MARGIN_S: Final = 2.0
"""Seconds that killing takes at most."""

VAIN_S: Final = 2.0
"""Seconds within which a node that can answer a request does."""


@dataclass
class Lease:
    """What a controller knows of the lease of a node; times but ``quoted_s`` by its own clock.

    Parameters
    ----------
    length_s : float
        Of the lease, from the moment that is quoted.
    heard_s : float
        When the last answer came; before the first, when this controller started.
    left_s : float
        Seconds that the lease may have had left then, by what earlier controllers granted.
    """

    length_s: float
    heard_s: float
    left_s: float = 0.0
    quoted_s: float | None = None
    asked_s: float = -math.inf

    def heard(self, agent_s: float, until_s: float, received_s: float) -> None:
        """Take in an answer: the agent's clock in it, its deadline by that, and when it came."""
        if received_s >= self.heard_s:
            self.heard_s, self.quoted_s = received_s, agent_s
            self.left_s = max(0.0, until_s - agent_s)

    def forget_clock(self) -> None:
        """Quote no clock any more: the agent is another than the one whose clock it was."""
        self.quoted_s = None

    def asked(self, at_s: float) -> None:
        """Take in that the node is called; the first time after the lapse is kept."""
        if self.asked_s < self.lapsed_s <= at_s:
            self.asked_s = at_s

    @property
    def lapsed_s(self) -> float:
        """When it has lapsed, unless the node answers before."""
        return self.heard_s + max(self.length_s, self.left_s) * (1 + DRIFT)

    @property
    def over_s(self) -> float:
        """When no job of the node can run any more, unless it answers before."""
        return self.lapsed_s + KILL_S * (1 + DRIFT) + MARGIN_S

    @property
    def gone_s(self) -> float:
        """When that may be reported; infinite until the node has been called after the lapse.

        A controller that was frozen may have been replaced. If so, the newer one has renewed the
        lease before the lapse, and the agent refuses any call of this one since then.
        """
        if self.asked_s < self.lapsed_s:
            return math.inf
        return max(self.over_s, self.asked_s + VAIN_S)


def require_length(lease_s: float) -> None:
    """Refuse a lease that would lapse although all is well.

    Raises
    ------
    InputError
        One line.
    """
    if not LEAST_S <= lease_s < math.inf:
        raise InputError(f"must be {LEAST_S:g} s or more, got {lease_s:g}", "lease")


class _Kept(Record):
    lease_s: Positive


class Granted:
    """The longest lease that a node may have from the controllers of one directory.

    A controller that is started anew may grant shorter ones than the last did; those still run.

    Parameters
    ----------
    path : path
        The file that keeps it.
    lease_s : float
        What this controller grants.
    now_s : float
        When it starts.

    Raises
    ------
    InputError
        When the file cannot be understood, or written.
    """

    def __init__(self, path: Path, lease_s: float, now_s: float) -> None:
        known = _Kept.from_data(read_data(path), str(path)).lease_s if path.exists() else 0.0
        self._path, self._own_s = path, lease_s
        self.longest_s = max(known, lease_s)
        self._lapsed_s = now_s + self.longest_s * (1 + DRIFT)
        if known != self.longest_s:
            self._keep()

    def forget_lapsed(self, now_s: float) -> None:
        """Forget the longer ones of earlier controllers once they have lapsed."""
        if self.longest_s > self._own_s and now_s > self._lapsed_s:
            self.longest_s = self._own_s
            self._keep()

    def _keep(self) -> None:
        write_kept(_Kept(lease_s=self.longest_s).to_data(), self._path)
