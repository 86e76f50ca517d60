"""Commands and environments of jobs, which may be long and which jobs of an array share.

The journal stores each of them once, by its digest. A state machine holds each in memory once,
whether it was read from a journal or its jobs were submitted in this process.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from pydantic_core import from_json, to_json

from dovetail.instances._record import FrozenDict

if TYPE_CHECKING:
    from dovetail.executor.jobs.specs import JobSpec

Words = tuple[str, ...] | Mapping[str, str]
"""A command, or an environment."""

KEPT_CHARACTERS: Final = 1000
"""Characters of a command in events and in jobs that are over; longer ones are in ``words``."""

_USED_ELSEWHERE: Final = 2
"""Reference count of an object that only the cache and the call refer to."""

_CACHED_BYTES: Final = 2**26


def brief(command: tuple[str, ...], most: int = KEPT_CHARACTERS) -> tuple[str, ...]:
    """Return a command of at most ``most`` characters; a longer one is cut and ends in ``…``."""
    if len(command) - 1 + sum(map(len, command)) <= most:
        return command
    left, kept = most, 0
    while len(command[kept]) + 1 < left:
        left -= len(command[kept]) + 1
        kept += 1
    return (*command[:kept], f"{command[kept][: left - 1]}…")


class Digests:
    """The digests of words, each computed once while the words exist."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def new(self, found: Iterable[Words | None]) -> Iterator[tuple[str, str]]:
        """Yield digest and text of the words that are new to this object."""
        for words in found:
            if words and id(words) not in self._known:
                text = to_json(words)
                self._known[id(words)] = digest = _digest(text)
                yield digest, text.decode()

    def of(self, words: Words | None) -> str | None:
        """Return the digest of words that were given to ``new``; None if there are no words."""
        return self._known[id(words)] if words else None


class KnownWords:
    """The words of a journal by their digests, each in memory once.

    Parameters
    ----------
    connection : sqlite3.Connection
        Connection to the journal, with its table ``words``.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[Words, int]] = {}
        self._bytes, self._most = 0, _CACHED_BYTES

    def of(self, digest: str) -> Words:
        """Return the words with a digest.

        Raises
        ------
        ValueError
            If the journal does not have them.
        """
        if digest not in self._known:
            text = self._text(digest)
            self._known[digest] = (_made(text), len(text))
            self._bytes += len(text)
            if self._bytes > self._most:
                self._forget_unused()
        return self._known[digest][0]

    def named(self, **digests: str | None) -> dict[str, Words]:
        """Return the words of each name whose digest is not None; raise as ``of`` does."""
        return {what: self.of(digest) for what, digest in digests.items() if digest is not None}

    def _text(self, digest: str) -> bytes:
        row = self._connection.execute(
            "SELECT text FROM words WHERE digest = ?", (digest,)
        ).fetchone()
        text = row[0].encode() if row is not None else b""
        if _digest(text) != digest:
            raise ValueError("its words are damaged")
        return text

    def _forget_unused(self) -> None:
        """Drop the words that no job refers to any more."""
        self._known = {
            digest: known
            for digest, known in self._known.items()
            if sys.getrefcount(known[0]) > _USED_ELSEWHERE
        }
        self._bytes = sum(size for _, size in self._known.values())
        self._most = max(_CACHED_BYTES, 2 * self._bytes)


def _made(text: bytes) -> Words:
    data = from_json(text)
    return FrozenDict(data) if isinstance(data, dict) else tuple(data)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


class SharedEnvironments:
    """Shares equal environments between jobs that are submitted one by one."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, Mapping[str, str]] = WeakValueDictionary()

    def in_common(self, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """Return the specifications, with equal environments as one object; thread-safe."""
        met: dict[int, Mapping[str, str]] = {}
        for spec in specs:
            if id(spec.env) not in met:
                met[id(spec.env)] = self._one(spec.env)
        return [
            spec if met[id(spec.env)] is spec.env else spec.with_words(env=met[id(spec.env)])
            for spec in specs
        ]

    def _one(self, env: Mapping[str, str]) -> Mapping[str, str]:
        if not env:
            return env
        digest = hashlib.sha256(to_json(env)).digest()
        return self._known.setdefault(digest, env)
