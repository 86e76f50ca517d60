"""The states of ranks, as the events that lead to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dovetail.executor.jobs.events import (
    RankEnded,
    RankEvent,
    RankGone,
    RankLost,
    RankReady,
    RankRefused,
    RankStarted,
)


@dataclass
class RankStatus:
    """The state of a rank: its start, whether it has been ready or lost since, and its end."""

    started: RankStarted | None = None
    state: RankReady | RankLost | None = None
    end: RankEnded | RankGone | RankRefused | None = None

    @property
    def lost(self) -> bool:
        """Whether it is unknown if the rank is running."""
        return self.end is None and isinstance(self.state, RankLost)

    def take_in(self, event: RankEvent) -> None:
        """Update the state by an event; an end is final."""
        if self.end is not None:
            return
        if isinstance(event, RankEnded | RankGone | RankRefused):
            self.end = event
        elif isinstance(event, RankStarted):
            self.started, self.state = event, None
        else:
            self.state = event

    def events(self) -> Iterator[RankEvent]:
        """Yield the events that lead to this state."""
        yield from (event for event in (self.started, self.state, self.end) if event is not None)

    def news_after(self, reported: RankStatus) -> Iterator[RankEvent]:
        """Yield the events that lead from the reported state to this one."""
        known = () if reported.lost and not self.lost else tuple(reported.events())
        if reported.end is None:
            yield from (event for event in self.events() if event not in known)


class RankLog:
    """The states of the ranks of many runs."""

    def __init__(self, events: Iterable[RankEvent] = ()) -> None:
        self.statuses: dict[str, dict[int, RankStatus]] = {}
        for event in events:
            self.take_in(event)

    def take_in(self, event: RankEvent) -> None:
        """Update the state of a rank by an event."""
        ranks = self.statuses.setdefault(event.run, {})
        ranks.setdefault(event.rank, RankStatus()).take_in(event)

    def status(self, run: str, rank: int) -> RankStatus:
        """Return the state of a rank, an empty one if it is unknown."""
        return self.statuses.get(run, {}).get(rank) or RankStatus()

    def events(self) -> Iterator[RankEvent]:
        """Yield the events that lead to all states."""
        for ranks in self.statuses.values():
            for rank in sorted(ranks):
                yield from ranks[rank].events()

    def has_trace(self, run: str) -> bool:
        """Return whether a rank of the run has been started, or is over."""
        ranks = self.statuses.get(run, {}).values()
        return any(one.started is not None or one.end is not None for one in ranks)

    def over(self, run: str, rank: int) -> bool:
        """Return whether a rank has ended, is gone, or was refused."""
        return self.status(run, rank).end is not None

    def forget(self, run: str) -> None:
        """Forget a run."""
        self.statuses.pop(run, None)
