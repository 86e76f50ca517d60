"""The waiting jobs in the order of a policy, without sorting all of them at every event."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from dovetail.solver.policies.state import Job, State

Key = tuple[float, ...]
"""The sort key of a queue, smallest first; ends with the job's number."""


class Queue:
    """The pending jobs, sorted by a key that stays the same while a job waits.

    Parameters
    ----------
    key : callable
        Returns the key of a job that begins to wait; called once, and again by ``renew``.
    """

    def __init__(self, key: Callable[[Job], Key]) -> None:
        self._key = key
        self._sorted: list[tuple[Key, int]] = []
        self._entered: dict[int, tuple[Key, int]] = {}

    def entries(self, state: State) -> Iterator[tuple[Key, Job]]:
        """Yield the pending jobs with their keys, in order."""
        self._take_in(state)
        for entry in self._sorted:
            if self._waits(state, entry):
                yield entry[0], state.pending[int(entry[0][-1])]

    def jobs(self, state: State) -> Iterator[Job]:
        """Yield the pending jobs in order."""
        return (job for _, job in self.entries(state))

    def renew(self, job: Job) -> None:
        """Move a pending job to the position of its present key."""
        entry = self._key(job), job.starts
        if self._entered.get(job.number) != entry:
            self._entered[job.number] = entry
            insort(self._sorted, entry)

    def _take_in(self, state: State) -> None:
        """Add the jobs that began to wait since the last call: the last ones of ``pending``."""
        for job in reversed(state.pending.values()):
            known = self._entered.get(job.number)
            if known is not None and known[1] == job.starts:
                break
            self.renew(job)
        gone = 0
        while gone < len(self._sorted) and not self._waits(state, self._sorted[gone]):
            gone += 1
        del self._sorted[:gone]
        if len(self._sorted) > 2 * len(state.pending) + 64:
            self._forget(state)

    def _waits(self, state: State, entry: tuple[Key, int]) -> bool:
        number = int(entry[0][-1])
        return number in state.pending and self._entered[number] == entry

    def _forget(self, state: State) -> None:
        """Drop the entries of jobs that no longer wait, at any position."""
        entered = self._entered
        waiting = [entered[number] for number in state.pending]
        self._entered = dict(zip(state.pending, waiting, strict=True))
        self._sorted = sorted(waiting)


def by_arrival(job: Job) -> Key:
    """Sort in the order of arrival."""
    return (job.number,)
