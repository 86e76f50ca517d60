"""Changes of pages as server-sent events: one watcher for all viewers.

A page is rendered once for all its viewers of one user: soon after an event, but at most once a
second, and every two seconds for what is measured. Only what has changed is sent. Rendering has a
budget: if all pages together took more than ``BUDGET`` of a core, they are rendered less often. A
viewer that falls behind gets the newest state of each part, not those between.
"""

from __future__ import annotations

import asyncio
import json
import logging
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

_LOG: Final = logging.getLogger("dovetail.live")
_END_S: Final = 0.5
_LOOK_S: Final = 0.1
_SETTLE_S: Final = 0.2
"""Seconds after an event in which the service's thread is left alone: it may start jobs."""


Parts = Mapping[str, str]
Key = tuple[str, int]
"""A page's address, and the number of the user who sees it."""


@dataclass
class _Viewer:
    """What a viewer has not been sent yet."""

    due: dict[str, str] = field(default_factory=dict)
    news: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: str = ""


@dataclass
class _Watched:
    """A page of a user, its viewers, and its parts when they were last rendered."""

    user: Owner
    parts: Parts = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    viewers: list[_Viewer] = field(default_factory=list)


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

    Attributes
    ----------
    every_s : float
        Least seconds between two updates, within the budget.
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
        self.every_s = EVERY_S

    @property
    def is_full(self) -> bool:
        """Whether no more viewers are let in."""
        return self._viewers >= MOST_VIEWERS

    async def events(
        self, address: str, user: Owner, gone: Callable[[], bool]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a viewer until it is gone, or the service or the page ends."""
        viewer = _Viewer()
        key = address, user.uid
        watched = self._watched.setdefault(key, _Watched(user))
        watched.viewers.append(viewer)
        viewer.due.update(watched.parts)
        if viewer.due:
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
                due, viewer.due, news, viewer.news = viewer.due, {}, viewer.news, ""
                text = json.dumps({"parts": due, "news": news}, separators=(",", ":"))
                yield b"event: parts\ndata: " + text.encode() + b"\n\n"
                beat_s = time.monotonic() + BEAT_S
        finally:
            self._viewers -= 1
            watched.viewers.remove(viewer)
            if not watched.viewers:
                self._watched.pop(key, None)

    async def _watch(self) -> None:
        """Render what is watched, again and again, until nobody watches."""
        while self._watched and not self._ending():
            began_s, took_s, number = time.monotonic(), 0.0, self._happened()
            for key, watched in list(self._watched.items()):
                took_s += await self._refresh(key, watched)
            self.every_s = max(EVERY_S, took_s / BUDGET)
            await asyncio.sleep(max(self.every_s - (time.monotonic() - began_s), _LOOK_S))
            quiet_s = began_s + max(QUIET_S, self.every_s)
            while (
                self._happened() == number
                and time.monotonic() < quiet_s
                and all(watched.parts for watched in self._watched.values())
            ):
                await asyncio.sleep(_LOOK_S)
            if self._happened() != number:
                await asyncio.sleep(_SETTLE_S)

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
        changed = {name: html for name, html in parts.items() if watched.parts.get(name) != html}
        news = _news(watched.states, states)
        watched.parts, watched.states = parts, states
        for viewer in watched.viewers if changed else ():
            viewer.due.update(changed)
            viewer.news = news or viewer.news
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
