"""Sessions of browsers over TCP, and links that begin one; only in memory, by their digests."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.types import Scope

from dovetail.executor.jobs.specs import Owner

LASTING_S: Final = 12 * 3600
LINK_S: Final = 3600
"""Seconds for which a link that was not used is valid."""

MOST_OF_USER: Final = 16
"""Sessions of a user; the oldest ends when there are more."""

_SECRET_BYTES: Final = 32


class _Begun(NamedTuple):
    """Whose session or link it is, and until when it is valid."""

    user: Owner
    until_s: float


class Sessions:
    """The sessions of a service; thread-safe.

    Parameters
    ----------
    now_s : callable
        A clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._open: dict[bytes, _Begun] = {}
        self._links: dict[bytes, _Begun] = {}

    def begin(self, user: Owner) -> str:
        """Begin a session, and return its secret."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        with self._lock:
            now_s = self._now_s()
            self._open = {key: each for key, each in self._open.items() if each.until_s > now_s}
            own = [key for key, each in self._open.items() if each.user.uid == user.uid]
            for key in own[: max(len(own) + 1 - MOST_OF_USER, 0)]:
                del self._open[key]
            self._open[_digest(secret)] = _Begun(user, now_s + LASTING_S)
        return secret

    def user(self, secret: str) -> Owner | None:
        """Return the user of a session; None if it is over or never was."""
        with self._lock:
            found = self._open.get(_digest(secret))
            return found.user if found is not None and found.until_s > self._now_s() else None

    def end(self, secret: str) -> None:
        """End a session, if there is one."""
        with self._lock:
            self._open.pop(_digest(secret), None)

    def link(self, user: Owner) -> str:
        """Return a secret that begins a session of a user once, within ``LINK_S``."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        with self._lock:
            self._links[_digest(secret)] = _Begun(user, self._now_s() + LINK_S)
        return secret

    def enter(self, secret: str) -> str | None:
        """Begin the session of a link's secret, which is void then; None if it is void."""
        with self._lock:
            link = self._links.pop(_digest(secret), None)
        return None if link is None or link.until_s <= self._now_s() else self.begin(link.user)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def cookie_name(scope: Scope) -> str:
    """Return the name of a session's cookie: cookies of a host are for all of its ports."""
    _, port = scope.get("server") or ("", None)
    return f"dovetail_session_{port or 0}"


def cookie_of(headers: object, name: str) -> str:
    """Return the value of a cookie among the headers of a request; empty if it is not there."""
    for header, value in headers:  # type: ignore[attr-defined]
        if header == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, found = part.strip().partition("=")
                if key == name:
                    return str(found)
    return ""


def set_cookie(secret: str, lasting_s: int, name: str, encrypted: bool = False) -> str:
    """Return the header that gives a browser a cookie; with 0 s, that takes it back.

    A browser whose connection is ``encrypted`` never sends it over one that is not.
    """
    secure = "; Secure" if encrypted else ""
    return f"{name}={secret}; Max-Age={lasting_s}; Path=/; HttpOnly; SameSite=Strict{secure}"
