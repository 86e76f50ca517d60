"""What is known of ranks, as the events that repeat it."""

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
    """One rank: its start, whether it is ready or lost since, and its end."""

    started: RankStarted | None = None
    state: RankReady | RankLost | None = None
    end: RankEnded | RankGone | RankRefused | None = None

    @property
    def lost(self) -> bool:
        """Whether it is not known how the rank is."""
        return self.end is None and isinstance(self.state, RankLost)

    def take_in(self, event: RankEvent) -> None:
        """Let an event change what is known; nothing changes an end."""
        if self.end is not None:
            return
        if isinstance(event, RankEnded | RankGone | RankRefused):
            self.end = event
        elif isinstance(event, RankStarted):
            self.started, self.state = event, None
        else:
            self.state = event

    def events(self) -> Iterator[RankEvent]:
        """Yield the events that repeat it."""
        yield from (event for event in (self.started, self.state, self.end) if event is not None)

    def news_after(self, reported: RankStatus) -> Iterator[RankEvent]:
        """Yield the events that lead from what has been reported of the rank to this."""
        known = () if reported.lost and not self.lost else tuple(reported.events())
        if reported.end is None:
            yield from (event for event in self.events() if event not in known)


class RankLog:
    """What is known of the ranks of many runs."""

    def __init__(self, events: Iterable[RankEvent] = ()) -> None:
        self.statuses: dict[str, dict[int, RankStatus]] = {}
        for event in events:
            self.take_in(event)

    def take_in(self, event: RankEvent) -> None:
        """Let an event change what is known of its rank."""
        ranks = self.statuses.setdefault(event.run, {})
        ranks.setdefault(event.rank, RankStatus()).take_in(event)

    def status(self, run: str, rank: int) -> RankStatus:
        """Return what is known of a rank."""
        return self.statuses.get(run, {}).get(rank) or RankStatus()

    def events(self) -> Iterator[RankEvent]:
        """Yield the events that repeat all of it."""
        for ranks in self.statuses.values():
            for rank in sorted(ranks):
                yield from ranks[rank].events()

    def has_trace(self, run: str) -> bool:
        """Return whether a rank of the run has been started, or is over."""
        ranks = self.statuses.get(run, {}).values()
        return any(one.started is not None or one.end is not None for one in ranks)

    def over(self, run: str, rank: int) -> bool:
        """Return whether a rank is known to be over."""
        return self.status(run, rank).end is not None

    def forget(self, run: str) -> None:
        """Forget a run."""
        self.statuses.pop(run, None)
