"""The memory charged to each user for the jobs that are not over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from sys import getsizeof
from typing import Any, Final, Self

from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.words import Words

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
