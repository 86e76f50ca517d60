"""How long jobs may run on a node that does not answer, computed without a common clock.

Every answer of an agent carries the time of the agent's clock, and the next request quotes it: the
agent lets its jobs run until ``lease_s`` after the quoted time, however late the request arrives.
The controller received the answer after that time, so the lease ends at most ``lease_s`` after the
receipt by the controller's clock, up to the difference of the two clocks' rates. Every answer also
carries the end of leases from earlier controllers; before the first answer, a file is used instead.

Source: C. G. Gray and D. R. Cheriton, Leases: An Efficient Fault-Tolerant Mechanism for
Distributed File Cache Consistency, SOSP 1989.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dovetail.executor.pools.runs.lease import KILL_S
from dovetail.executor.system.small_files import write_kept
from dovetail.instances._record import Positive, Record
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data

LEASE_S: Final = 15.0
"""Default number of seconds for which jobs keep running without a renewal."""

LEAST_S: Final = 5.0
"""The shortest lease: an idle agent is renewed every two seconds, and a renewal may be lost."""

DRIFT: Final = 0.01
"""The largest assumed difference of two clocks' rates; real ones differ far less."""

MARGIN_S: Final = 2.0
"""The longest that a kill is assumed to take, in seconds."""

REPLY_S: Final = 2.0
"""Seconds within which a node that can answer a request answers it."""


@dataclass
class RemoteLease:
    """The lease of a node as its controller knows it.

    All times are of the controller's clock, except ``quoted_s``, which is of the agent's.

    Parameters
    ----------
    length_s : float
        The length of the lease from the quoted time on.
    answered_s : float
        When the last answer came; before the first answer, when this controller started.
    left_s : float
        The longest remaining time of earlier controllers' leases at that moment.
    """

    length_s: float
    answered_s: float
    left_s: float = 0.0
    quoted_s: float | None = None
    requested_s: float = -math.inf

    def note_answer(self, agent_s: float, until_s: float, received_s: float) -> None:
        """Record an answer: the agent's clock, its deadline by that clock, and the receipt."""
        if received_s >= self.answered_s:
            self.answered_s, self.quoted_s = received_s, agent_s
            self.left_s = max(0.0, until_s - agent_s)

    def forget_clock(self) -> None:
        """Stop quoting a time, because a new agent has another clock."""
        self.quoted_s = None

    def note_request(self, at_s: float) -> None:
        """Record a call of the node, if it is the first after the lapse."""
        if self.requested_s < self.lapsed_s <= at_s:
            self.requested_s = at_s

    @property
    def lapsed_s(self) -> float:
        """When the lease will have lapsed, unless the node answers before."""
        return self.answered_s + max(self.length_s, self.left_s) * (1 + DRIFT)

    @property
    def over_s(self) -> float:
        """When no job can still run on the node, unless the node answers before."""
        return self.lapsed_s + KILL_S * (1 + DRIFT) + MARGIN_S

    @property
    def gone_s(self) -> float:
        """When jobs may be reported as gone; infinite until the node was called after the lapse.

        This controller may have been frozen and replaced. The newer one then renewed the lease
        before the lapse, and the agent refuses the calls of this one.
        """
        if self.requested_s < self.lapsed_s:
            return math.inf
        return max(self.over_s, self.requested_s + REPLY_S)


def require_length(lease_s: float) -> None:
    """Refuse a lease that would lapse without any fault.

    Raises
    ------
    InputError
        One line.
    """
    if not LEAST_S <= lease_s < math.inf:
        raise InputError(f"must be {LEAST_S:g} s or more, got {lease_s:g}", "lease")


class _KeptLease(Record):
    lease_s: Positive


class GrantedLease:
    """The longest lease that controllers of one directory have granted and that may still run.

    A restarted controller may grant shorter leases than the one before it.

    Parameters
    ----------
    path : path
        The file that keeps the length.
    lease_s : float
        The length of the leases that this controller grants.
    now_s : float
        When this controller starts.

    Raises
    ------
    InputError
        When the file is invalid or cannot be written.
    """

    def __init__(self, path: Path, lease_s: float, now_s: float) -> None:
        known = _KeptLease.from_data(read_data(path), str(path)).lease_s if path.exists() else 0.0
        self._path, self._own_s = path, lease_s
        self.longest_s = max(known, lease_s)
        self._lapsed_s = now_s + self.longest_s * (1 + DRIFT)
        if known != self.longest_s:
            self._keep()

    def forget_lapsed(self, now_s: float) -> None:
        """Forget longer leases of earlier controllers once they have lapsed."""
        if self.longest_s > self._own_s and now_s > self._lapsed_s:
            self.longest_s = self._own_s
            self._keep()

    def _keep(self) -> None:
        write_kept(_KeptLease(lease_s=self.longest_s).to_data(), self._path)
