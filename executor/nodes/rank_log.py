"""What is known of ranks, as the events that tell it anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.executor.jobs.events import (
    AnyEvent,
    RankEnded,
    RankGone,
    RankLost,
    RankReady,
    RankRefused,
    RankStarted,
)

OVER = (RankEnded, RankGone, RankRefused)
RankEvent = RankStarted | RankReady | RankRefused | RankEnded | RankLost | RankGone


@dataclass
class RankStatus:
    """One rank: its start, whether it is ready or lost since, and its end."""

    started: RankStarted | None = None
    state: RankReady | RankLost | None = None
    end: RankEnded | RankGone | RankRefused | None = None

    def take_in(self, event: RankEvent) -> None:
        """Let an event change what is known; nothing changes an end."""
        if self.end is not None:
            return
        if isinstance(event, OVER):
            self.end = event
        elif isinstance(event, RankStarted):
            self.started, self.state = event, None
        else:
            self.state = event

    def replayed(self) -> Iterator[RankEvent]:
        """Yield what tells all of it anew."""
        yield from (event for event in (self.started, self.state, self.end) if event is not None)


@dataclass
class RankLog:
    """What is known of the ranks of many runs."""

    statuses: dict[str, dict[int, RankStatus]] = field(default_factory=dict)

    def take_in(self, event: AnyEvent) -> None:
        """Let an event change what is known of its rank; others are passed over."""
        if isinstance(event, RankEvent):
            self.status(event.run, event.rank).take_in(event)

    def status(self, run: str, rank: int) -> RankStatus:
        """Return what is known of a rank."""
        return self.statuses.setdefault(run, {}).setdefault(rank, RankStatus())

    def replayed(self, run: str) -> Iterator[RankEvent]:
        """Yield what tells anew how the ranks of a run are, in their order."""
        statuses = self.statuses.get(run, {})
        for rank in sorted(statuses):
            yield from statuses[rank].replayed()

    def has_trace(self, run: str) -> bool:
        """Tell whether a rank of the run has been started, or is over."""
        statuses = self.statuses.get(run, {}).values()
        return any(one.started is not None or one.end is not None for one in statuses)

    def over(self, run: str, rank: int) -> bool:
        """Tell whether a rank is known to be over."""
        found = self.statuses.get(run, {}).get(rank)
        return found is not None and found.end is not None

    def lost(self, run: str, rank: int) -> bool:
        """Tell whether nobody can say how a rank is."""
        found = self.statuses.get(run, {}).get(rank)
        return found is not None and found.end is None and isinstance(found.state, RankLost)

    def all_over(self, run: str) -> bool:
        """Tell whether every rank of the run is over of which anything is known."""
        return all(one.end is not None for one in self.statuses.get(run, {}).values())

    def forget(self, run: str) -> None:
        """Forget a run."""
        self.statuses.pop(run, None)
