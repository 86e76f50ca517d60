"""Changes of pages as server-sent events: one watcher for all viewers.

A page is rendered once for all its viewers of one user: soon after an event, but at most once a
second, and every two seconds for what is measured. Only parts that have changed are sent, without
the contents of rows (``tr``, ``li`` and ``article`` with an id) that have not, encoded once for all
who lack the same. Rendering has a budget of ``BUDGET`` of a core, of which all users who look have
equal parts, and users take turns: a user with many or large pages sees them less often, others do
not. A viewer that falls behind gets the newest state, not those between.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.concurrency import run_in_threadpool

from dovetail.executor.jobs.specs import Owner
from dovetail.instances.errors import DovetailError

EVERY_S: Final = 1.0
"""Least seconds between two updates of a viewer."""

QUIET_S: Final = 2.0
"""Seconds between two updates if no event happens."""

BUDGET: Final = 0.1
"""Part of a core that rendering for viewers may take."""

BEAT_S: Final = 15.0
"""Seconds after which a viewer without news gets an empty line, so that lost ones are noticed."""

MOST_VIEWERS: Final = 512
"""Viewers of a service."""

MOST_PAGES: Final = 32
"""Different pages at which a user looks at a time."""

_LOG: Final = logging.getLogger("dovetail.live")
_END_S: Final = 0.5
_LOOK_S: Final = 0.1
_SETTLE_S: Final = 0.2
"""Seconds after an event in which the service's thread is left alone: it may start jobs."""


Parts = Mapping[str, str]
Key = tuple[str, int]
"""A page's address, and the number of the user who sees it."""


_ROW: Final = re.compile(r'(<(tr|li|article) id="([^"]+)"[^>]*>)(.*?)(</\2>)', re.DOTALL)


@dataclass(frozen=True, eq=False)
class _Rendered:
    """A page's parts as they were rendered once."""

    parts: Parts

    def since(self, before: _Rendered) -> Parts:
        """Return the parts in which it differs from another."""
        return {
            name: _changed(before.parts.get(name, ""), html)
            for name, html in self.parts.items()
            if before.parts.get(name) != html
        }

    def event(self, before: _Rendered, news: str) -> bytes:
        """Return the event for a viewer who shows another rendering.

        ``names`` lists the parts in their order if they are others than before.
        """
        said: dict[str, object] = {"parts": self.since(before), "news": news}
        if [*self.parts] != [*before.parts]:
            said["names"] = [*self.parts]
        text = json.dumps(said, separators=(",", ":"))
        return b"event: parts\ndata: " + text.encode() + b"\n\n"


_BLANK: Final = _Rendered({})


def _changed(before: str, now: str) -> str:
    """Return a part, without the contents of the rows that have not changed."""
    same = dict(_rows(before).items() & _rows(now).items())
    return _ROW.sub(lambda row: row[1] + row[5] if row[3] in same else row[0], now)


def _rows(html: str) -> dict[str, str]:
    """Return the contents of the rows of a part by their ids; nothing if two have the same."""
    found = [*_ROW.finditer(html)]
    rows = {row[3]: row[4] for row in found}
    return rows if len(rows) == len(found) else {}


@dataclass
class _Viewer:
    """What a viewer shows, and the news that it has not been sent yet."""

    shows: _Rendered = _BLANK
    news: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: str = ""


@dataclass
class _Watched:
    """A page of a user, its viewers, and its parts when they were last rendered.

    ``number`` is that of the last event that they show; None: they were not rendered yet. They are
    rendered again from ``from_s`` on if something has happened, and from ``quiet_s`` on anyway.
    """

    user: Owner
    number: int | None = None
    from_s: float = 0.0
    quiet_s: float = 0.0
    now: _Rendered = _BLANK
    states: dict[str, str] = field(default_factory=dict)
    viewers: list[_Viewer] = field(default_factory=list)
    events: dict[tuple[_Rendered, str], bytes] = field(default_factory=dict)

    def event(self, viewer: _Viewer) -> bytes:
        """Return what a viewer lacks, which it shows from now on."""
        lacks = viewer.shows, viewer.news
        viewer.shows, viewer.news = self.now, ""
        if lacks not in self.events:
            self.events[lacks] = self.now.event(*lacks)
        return self.events[lacks]


class Feed:
    """Sends the changes of pages to viewers.

    Parameters
    ----------
    render : callable
        Returns the parts of the page at an address, for a user; called in another thread.
    states : callable
        Returns the states of a user's jobs; called in another thread.
    happened : callable
        Returns a number that changes with every event; cheap.
    ending : callable
        Returns whether the service ends.
    """

    def __init__(
        self,
        render: Callable[[str, Owner], Parts],
        states: Callable[[Owner], dict[str, str]],
        happened: Callable[[], int],
        ending: Callable[[], bool],
    ) -> None:
        self._render, self._states = render, states
        self._happened, self._ending = happened, ending
        self._watched: dict[Key, _Watched] = {}
        self._watching: asyncio.Task[None] | None = None
        self._viewers = 0
        self._turns: dict[int, float] = {}

    def has_room(self, address: str, user: Owner) -> bool:
        """Return whether one more viewer is let in."""
        of_user = sum(uid == user.uid for _, uid in self._watched)
        known = (address, user.uid) in self._watched
        return self._viewers < MOST_VIEWERS and (known or of_user < MOST_PAGES)

    async def events(
        self, address: str, user: Owner, gone: Callable[[], bool]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a viewer until it is gone, or the service or the page ends."""
        viewer = _Viewer()
        key = address, user.uid
        watched = self._watched.setdefault(key, _Watched(user))
        watched.viewers.append(viewer)
        if watched.now is not _BLANK:
            viewer.ready.set()
        self._viewers += 1
        try:
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch())
            yield b"retry: 2000\n\n"
            beat_s = time.monotonic() + BEAT_S
            while not (self._ending() or viewer.gone or gone()):
                try:
                    await asyncio.wait_for(viewer.ready.wait(), _END_S)
                except TimeoutError:
                    if time.monotonic() > beat_s:
                        yield b":\n\n"
                        beat_s = time.monotonic() + BEAT_S
                    continue
                viewer.ready.clear()
                yield watched.event(viewer)
                beat_s = time.monotonic() + BEAT_S
        finally:
            self._viewers -= 1
            watched.viewers.remove(viewer)
            if not watched.viewers:
                self._watched.pop(key, None)

    async def _watch(self) -> None:
        """Render pages one by one, each when it is due, until nobody watches."""
        number, changed_s = self._happened(), 0.0
        while self._watched and not self._ending():
            if self._happened() != number:
                number, changed_s = self._happened(), time.monotonic()
            key = self._next(number, changed_s + _SETTLE_S)
            if key is None:
                await asyncio.sleep(_LOOK_S)
                continue
            watched, began_s = self._watched[key], time.monotonic()
            took_s = await self._refresh(key, watched)
            wait_s = took_s * self._pages_of_all(key[1]) / BUDGET
            watched.number = number
            watched.from_s = began_s + max(EVERY_S, wait_s)
            watched.quiet_s = began_s + max(QUIET_S, wait_s)
            self._turns[key[1]] = time.monotonic()

    def _next(self, number: int, settled_s: float) -> Key | None:
        """Return the page to render now, of the user whose last turn is longest ago; or None."""
        now_s = time.monotonic()

        def is_due(watched: _Watched) -> bool:
            if watched.number is None:
                return True
            has_news = watched.number != number and now_s >= settled_s
            return now_s >= (watched.from_s if has_news else watched.quiet_s)

        due = [key for key, watched in self._watched.items() if is_due(watched)]
        turns = self._turns
        return min(due, key=lambda k: (turns.get(k[1], 0.0), self._watched[k].from_s), default=None)

    def _pages_of_all(self, uid: int) -> int:
        """Return how many pages would be watched if every user watched as many as this one."""
        users = {key[1] for key in self._watched} | {uid}
        self._turns = {user: turn for user, turn in self._turns.items() if user in users}
        return len(users) * max(sum(key[1] == uid for key in self._watched), 1)

    async def _refresh(self, key: Key, watched: _Watched) -> float:
        """Render a page and note what has changed; return the seconds of a core that it took."""

        def made() -> tuple[Parts, dict[str, str], float]:
            began_s = time.thread_time()
            parts, states = self._render(key[0], watched.user), self._states(watched.user)
            return parts, states, time.thread_time() - began_s

        try:
            parts, states, took_s = await run_in_threadpool(made)
        except DovetailError as error:
            self._send_away(watched, str(error))
            return 0.0
        except Exception:
            _LOG.exception("the page %s is not rendered", key[0])
            self._send_away(watched, "failed")
            return 0.0
        news = _news(watched.states, states)
        changed = parts != watched.now.parts
        if changed:
            watched.now = _Rendered(parts)
            watched.events.clear()
        watched.states = states
        for viewer in watched.viewers if changed or news else ():
            viewer.news = ", ".join(filter(None, (viewer.news, news)))
            viewer.ready.set()
        return took_s

    def _send_away(self, watched: _Watched, why: str) -> None:
        for viewer in watched.viewers:
            viewer.gone = why


def _news(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return which of a user's jobs changed their state, as a screen reader says it."""
    if not before:
        return ""
    changed = [f"{job} {state}" for job, state in now.items() if before.get(job) != state]
    return ", ".join(changed[:5])
