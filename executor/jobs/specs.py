"""Records of submissions and starts: the specification of a job, and its runs.

Commands and environments may be long, and jobs of an array share them (`Words`). The journal stores
each of them once, by its digest. A state machine holds each in memory once, whether it was read
from a journal or its jobs were submitted in this process. Users are charged for those of their jobs
that are not over.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from sys import getsizeof
from typing import Annotated, Any, Final, Literal, Self
from weakref import WeakValueDictionary

from pydantic import FailFast, Field, StrictBool, StrictInt, field_validator, model_validator
from pydantic_core import from_json, to_json

from dovetail.instances._record import (
    IDLE,
    AnyShare,
    Count,
    FrozenDict,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    SeatShare,
    Text,
    rule_broken,
    shown,
)
from dovetail.instances.instance import check_node_rule

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


MOST_AFTER: Final = 1000
"""Most jobs that one job may wait for."""

MOST_PROBES_S: Final = 50
"""Limit on the probes of a service per second."""

MOST_NICE: Final = 20
"""Limit on ``nice``: each level that a user's jobs have costs a decision in every round."""

Index = Annotated[StrictInt, Field(ge=0, le=10**9)]

UserId = Annotated[StrictInt, Field(ge=0, le=2**32 - 2)]


_OUTPUT_PATTERN: Final = re.compile(r"(?:[^%\0]|%[jatrux%])*(?:[^%/\0]|%[jatrux%])")


class Owner(Record):
    """The user that owns a job and runs it; known from the connection that submitted it."""

    name: Name
    uid: UserId
    gid: UserId


WorkloadKey = tuple[int, str]
"""A workload is identified by the id of its user and its name."""


class JobSpec(Record):
    """A job as its owner submitted it, or last edited it while it waited.

    Parameters
    ----------
    command : tuple of str
        Program and arguments, the same for every rank.
    workload : str
        Jobs of one owner and one workload are interchangeable for prediction: same program, same
        data, same batch.
    owner : Owner
        The user who submitted it.
    cwd : str
        Working directory.
    env : mapping of str to str
        The submitter's environment.
    name : str, optional
        Name of the job in lists.
    workers : int
        Number of ranks, one GPU each, which start together.
    workers_per_node, workers_together : int, optional
        How many of its ranks each node has, or a multiple of how many, as in an instance.
    gsla, weight, priority
        As in an instance.
    nice : int
        Priority among the owner's jobs, as in nice(1): lower values start first. It does not
        matter between users.
    isolation : {"blocks"}, optional
        Allow kernel launches to be intercepted: for a latency-critical job, so that best-effort
        jobs can run in its idle time; for a best-effort job, so that it can run there.
    memory_mib : float, optional
        Device memory of one rank, which becomes its limit. If omitted, the job runs alone until its
        workload has a profile, which gives the memory.
    memory_percent : float, optional
        Or this memory in per cent of what its device offers to jobs.
    estimate_s : float, optional
        Seconds it is expected to run alone.
    walltime_s : float, optional
        Seconds after which a run is stopped and not restarted.
    retries : int
        Number of restarts after failures.
    requeue : bool
        Whether it may be stopped in favour of another job and started again (like Slurm's
        ``--requeue``); it must resume from its own checkpoints.
    checkpoint_s : float, optional
        Most seconds of work between its checkpoints, 0 if it writes one on SIGTERM. If given, the
        policy ``dovetail`` may stop it for other jobs.
    stops_apart_s : float, optional
        Least seconds between two such stops; an hour by default.
    grace_s : float
        Seconds from the request to stop (SIGTERM) to the kill.
    progress_pattern : str, optional
        A regular expression whose first group is the number of iterations done; lines of its
        output that match report progress.
    public_log : bool
        Whether other users may read its output.
    output, error : str, optional
        Files that get a copy of its output, and of its standard error alone: relative to ``cwd``
        unless absolute, with sbatch(1)'s ``%j`` (job), ``%a`` (index), ``%t`` or ``%r`` (rank),
        ``%u`` (user), ``%x`` (name) and ``%%``.
    after : tuple of str
        Ids of jobs that must finish before it may start; it is cancelled if one of them fails or
        is cancelled (like Slurm's ``afterok``).
    after_any : tuple of str
        Ids of jobs that must be over before it may start, however they end.
    held : bool
        Whether it is submitted held: it does not start until it is released.
    index : int, optional
        Its index in an array: ``DOVETAIL_ARRAY_INDEX`` of its processes.
    place : int, optional
        Number of jobs of its array that were submitted before it.
    most_running : int, optional
        Number of jobs of its array that may hold devices at the same time.
    service : bool
        Whether it has no end: it starts again whenever it ends, until it is cancelled or has ended
        ``retries`` times in a row soon after its start (0: no limit). Jobs of its array are its
        replicas, of which no two share a device.
    probe : str, optional
        How a service is asked whether it answers: an address of this machine, with ``{port}`` for
        its port (``http://127.0.0.1:{port}/health``), or a command that ends with status 0.
    probe_rate : float, optional
        Probes per second; they are sent at fixed times, whether or not earlier ones were answered.
    probe_histogram : str, optional
        Name of a Prometheus histogram of seconds in the answers, whose counts are the latencies;
        otherwise, the latencies are those of the probes.
    """

    command: Annotated[tuple[Text, ...], FailFast(), Field(min_length=1, max_length=10_000)]
    workload: Name
    owner: Owner
    cwd: Text
    env: FrozenMapping[Text, Text] = Field({})
    name: Name | None = None
    workers: Count = 1
    workers_per_node: Count | None = None
    workers_together: Count | None = None
    gsla: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] | None = None
    weight: Positive = 1.0
    priority: Literal["batch", "latency"] = "batch"
    nice: Annotated[StrictInt, Field(ge=-MOST_NICE, le=MOST_NICE)] = 0
    isolation: Literal["blocks"] | None = None
    memory_mib: Positive | None = None
    memory_percent: Annotated[Positive, Field(le=100)] | None = None
    estimate_s: Positive | None = None
    walltime_s: Positive | None = None
    retries: Annotated[StrictInt, Field(ge=0, le=1000)] = 0
    requeue: StrictBool = True
    checkpoint_s: NonNegative | None = None
    stops_apart_s: NonNegative | None = None
    grace_s: NonNegative = 30.0
    progress_pattern: Annotated[Text, Field(max_length=1000)] | None = None
    public_log: StrictBool = False
    output: Annotated[Text, Field(max_length=4000)] | None = None
    error: Annotated[Text, Field(max_length=4000)] | None = None
    after: Annotated[tuple[Name, ...], FailFast(), Field(max_length=MOST_AFTER)] = ()
    after_any: Annotated[tuple[Name, ...], FailFast(), Field(max_length=MOST_AFTER)] = ()
    held: StrictBool = False
    index: Index | None = None
    place: Index | None = None
    most_running: Count | None = None
    service: StrictBool = False
    probe: Annotated[Text, Field(max_length=2000)] | None = None
    probe_rate: Annotated[Positive, Field(le=MOST_PROBES_S)] | None = None
    probe_histogram: (
        Annotated[Text, Field(max_length=200, pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")] | None
    ) = None

    @model_validator(mode="after")
    def _ends_or_serves(self) -> Self:
        if self.service:
            self._refuse_ends()
        elif self.probe is not None:
            raise rule_broken("probe", f"needs a service, got {shown(self.probe)}")
        for name in ("probe_rate", "probe_histogram"):
            if getattr(self, name) is not None and self.probe is None:
                raise rule_broken(name, f"needs a probe, got {shown(getattr(self, name))}")
        if self.probe_histogram is not None and not self.is_probed_by_http:
            raise rule_broken("probe_histogram", f"needs an address as probe, got {self.probe}")
        return self

    def _refuse_ends(self) -> None:
        """Refuse a service with a field that only a job with an end can have."""
        if self.priority != "latency":
            raise rule_broken("priority", f"must be latency for a service, got {self.priority}")
        if not self.requeue:
            raise rule_broken("requeue", "must be true for a service, which starts again")
        for name in _OF_JOBS_WITH_AN_END:
            value = getattr(self, name)
            if value is not None:
                raise rule_broken(name, f"must not be given for a service, got {shown(value)}")
        if self.probe is not None and self.progress_pattern is not None:
            got = shown(self.progress_pattern)
            raise rule_broken("progress_pattern", f"must not be given with a probe, got {got}")

    @property
    def is_probed_by_http(self) -> bool:
        """Whether its probe is an address; otherwise it is a command, or there is none."""
        return (self.probe or "").startswith("http://")

    @model_validator(mode="after")
    def _whole_groups_on_nodes(self) -> Self:
        check_node_rule(self.workers, self.workers_per_node, self.workers_together)
        return self

    @model_validator(mode="after")
    def _one_memory(self) -> Self:
        if self.memory_mib is not None and self.memory_percent is not None:
            got = f"{self.memory_percent:.15g}"
            raise rule_broken("memory_percent", f"must not be given with memory_mib, got {got}")
        return self

    @property
    def together(self) -> int:
        """How many ranks must be on a node together; 1 if each may be on any node."""
        return self.workers_per_node or self.workers_together or 1

    @property
    def key(self) -> WorkloadKey:
        """Identity of its workload: the owner's user id and the name."""
        return self.owner.uid, self.workload

    def changed(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with other values in the named fields, checked like a new record.

        Unchanged fields stay the same objects, because jobs of an array share long words. Memory in
        MiB replaces that in per cent, and the other way round.

        Raises
        ------
        InputError
            If the changed record breaks a rule.
        """
        for one, other in (_MEMORY, _MEMORY[::-1]):
            if changes.get(one) is not None:
                changes = {other: None, **changes}
        checked = self.replace(**changes)
        return self.model_copy(update={name: getattr(checked, name) for name in changes})

    def with_words(self, **words: Words) -> Self:
        """Return a copy with this ``command`` or ``env``, which is not checked again."""
        return self.model_copy(update=words)

    def without_words(self) -> Self:
        """Return a copy as kept for a job that is over: no environment, and a shortened command."""
        command = brief(self.command)
        if not self.env and command is self.command:
            return self
        return self.with_words(env=FrozenDict(), command=command)

    @field_validator("output", "error")
    @classmethod
    def _names_a_file(cls, pattern: str | None) -> str | None:
        if pattern is not None and not _OUTPUT_PATTERN.fullmatch(pattern):
            rule = "must be a file with %j, %a, %t, %r, %u, %x and %% only"
            raise rule_broken("", f"{rule}, got {shown(pattern)}")
        return pattern

    @field_validator("probe")
    @classmethod
    def _probes_this_machine(cls, probe: str | None) -> str | None:
        named = probe is not None and "://" in probe.partition(" ")[0]
        if probe is not None and named and not _PROBED_ADDRESS.fullmatch(probe):
            rule = "must be an address like http://127.0.0.1:{port}/health or a command"
            raise rule_broken("", f"{rule}, got {shown(probe)}")
        return probe

    @field_validator("progress_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        try:
            groups = re.compile(pattern).groups if pattern is not None else 1
        except (re.error, OverflowError, RecursionError) as error:
            raise rule_broken("", f"must be a regular expression: {error}") from None
        if not groups:
            raise rule_broken("", f"must have a group, the iterations done, got {shown(pattern)}")
        return pattern


_MEMORY: Final = ("memory_mib", "memory_percent")

_OF_JOBS_WITH_AN_END: Final = (
    "walltime_s",
    "estimate_s",
    "checkpoint_s",
    "stops_apart_s",
    "most_running",
)

_PORT: Final = r"[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5]"

_PROBED_ADDRESS: Final = re.compile(
    rf"http://(?:127\.0\.0\.1|localhost|\[::1\]):(?:\{{port\}}|{_PORT})(?:/[!-~]*)?", re.ASCII
)
"""An address of the machine on which the probe runs, which is that of the job."""

HTTP_PROBES_S: Final = 10.0
"""Probes of an address per second by default: with 600 a minute, a window of one has a p99."""

OTHER_PROBES_S: Final = 1.0
"""Runs of a probe's command, or readings of a server's histogram, per second by default."""


def probes_per_s(spec: JobSpec) -> float:
    """Return how many probes a service with a probe gets per second."""
    timed = spec.is_probed_by_http and spec.probe_histogram is None
    return spec.probe_rate or (HTTP_PROBES_S if timed else OTHER_PROBES_S)


FIXED: Final = (
    "owner",
    "service",
    "after",
    "after_any",
    "held",
    "index",
    "place",
    "most_running",
)
"""The fields of a job, in addition to its environment, that cannot be edited."""


class Seat(Record):
    """The place of one rank.

    Parameters
    ----------
    gpu : str
        The device's id in the pool's cluster.
    share : int, optional
        Cap of the process in per cent, for its whole life; None = no cap. ``idle``: its thread
        blocks run while an isolated latency job on the device runs none.
    memory_mib : float, optional
        Limit of its device memory; None = no limit.
    """

    gpu: Name
    share: SeatShare | None = None
    memory_mib: Positive | None = None

    @property
    def share_text(self) -> str:
        """Its share as text."""
        return str(self.share) if self.share in (None, IDLE) else f"{self.share} %"


class Run(Record):
    """One start of a job; its id is the job's id and a number: ``j17.2``.

    Parameters
    ----------
    id, job : str
        Ids of the run and of its job.
    spec : JobSpec
        The specification of the job.
    seats : tuple of Seat
        One for each rank.
    sub_batch : int, optional
        Samples of a step, if not the full batch of the workload.
    isolated : bool
        Whether its kernel launches are intercepted: on all its devices for a latency job, otherwise
        on the devices where it has no cap. There its share is ``idle`` as long as an isolated
        latency job without a cap is beside it.
    port : int, optional
        The port of a service, which no other run of the pool has.
    """

    id: Name
    job: Name
    spec: JobSpec
    seats: Annotated[tuple[Seat, ...], Field(min_length=1)]
    sub_batch: Count | None = None
    isolated: StrictBool = False
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None

    def share_on(self, gpu: str) -> AnyShare:
        """Return its share of a device; None if it has no cap there or does not use the device."""
        return next((seat.share for seat in self.seats if seat.gpu == gpu), None)

    def isolated_on(self, seat: Seat) -> bool:
        """Return whether its kernel launches on a device are intercepted."""
        return self.isolated and (self.spec.priority == "latency" or seat.share in (None, IDLE))

    def beside(self, gpu: str, leads: bool) -> Self:
        """Return an isolated best-effort run as it is on a device beside others.

        Without a cap there, its share is ``idle`` if one of the others ``leads``, otherwise none.
        """
        seats = tuple(
            seat.model_copy(update={"share": IDLE if leads else None})
            if seat.gpu == gpu and self.isolated_on(seat)
            else seat
            for seat in self.seats
        )
        return self if seats == self.seats else self.model_copy(update={"seats": seats})

    @property
    def places(self) -> str:
        """Its devices and shares as text."""
        return ", ".join(
            seat.gpu if seat.share is None else f"{seat.gpu} at {seat.share_text}"
            for seat in self.seats
        )

    @model_validator(mode="after")
    def _one_seat_a_rank(self) -> Self:
        if len(self.seats) != self.spec.workers:
            raise rule_broken(
                "seats", f"must have {self.spec.workers} items, got {len(self.seats)}"
            )
        if len({seat.gpu for seat in self.seats}) != len(self.seats):
            raise rule_broken("seats", "must be on different GPUs")
        return self


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
    files = (spec.cwd, spec.output, spec.error)
    asked = (spec.progress_pattern, spec.probe, spec.probe_histogram)
    texts = (*files, *asked, spec.workload, spec.name)
    awaited = len(spec.after) + len(spec.after_any)
    return sum(map(getsizeof, texts)) + awaited * _AWAITED_BYTES
