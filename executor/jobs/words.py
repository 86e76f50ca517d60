"""Commands and environments of jobs, which may be long and which jobs of an array share.

The journal stores each of them once, by its digest. A state machine holds each in memory once,
whether it was read from a journal or its jobs were submitted in this process. Users are charged for
those of their jobs that are not over.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, Self
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


_AWAITED_BYTES: Final = 24
"""Charge for an awaited job's id: in the specification, in the job and in the journal."""


class Charges:
    """The bytes of specifications; words that jobs of a user share count once.

    Attributes
    ----------
    of_user : Counter of int
        Bytes by user.
    """

    def __init__(self) -> None:
        self.of_user: Counter[int] = Counter()
        self._specs: dict[str, JobSpec] = {}
        # By user and identity: these words exist as long as a specification here has them.
        self._uses: Counter[tuple[int, int]] = Counter()

    def put(self, job: str, spec: JobSpec | None) -> None:
        """Charge a job for its present specification; None = the job is over."""
        before = self._specs.pop(job, None)
        if spec is not None:
            self.of_user[spec.owner.uid] += _own_bytes(spec)
            for key, words in _words(spec):
                self._uses[key] += 1
                if self._uses[key] == 1:
                    self.of_user[spec.owner.uid] += _bytes(words)
            self._specs[job] = spec
        if before is not None:
            self._take_back(before)

    def __contains__(self, job: str) -> bool:
        return job in self._specs

    def _take_back(self, spec: JobSpec) -> None:
        uid = spec.owner.uid
        self.of_user[uid] -= _own_bytes(spec)
        for key, words in _words(spec):
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key]
                self.of_user[uid] -= _bytes(words)
        if not self.of_user[uid]:
            del self.of_user[uid]

    def more(self, specs: Iterable[JobSpec]) -> int:
        """Return the additional bytes that these jobs of one user would be charged."""
        found, new = 0, set[tuple[int, int]]()
        for spec in specs:
            found += _own_bytes(spec)
            for key, words in _words(spec):
                if key not in self._uses and key not in new:
                    new.add(key)
                    found += _bytes(words)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self)()
        for job, spec in deepcopy(self._specs, memo).items():
            made.put(job, spec)
        return made


def _words(spec: JobSpec) -> Iterator[tuple[tuple[int, int], Words]]:
    for words in (spec.command, spec.env):
        yield (spec.owner.uid, id(words)), words


def _bytes(words: Words) -> int:
    texts = [*words.keys(), *words.values()] if isinstance(words, Mapping) else words
    return getsizeof(words) + sum(map(getsizeof, texts))


def _own_bytes(spec: JobSpec) -> int:
    """Return the bytes that a specification shares with no other."""
    texts = (spec.cwd, spec.workload, spec.name, spec.output, spec.error, spec.progress_pattern)
    awaited = len(spec.after) + len(spec.after_any)
    return sum(map(getsizeof, texts)) + awaited * _AWAITED_BYTES
