"""Records of submissions and starts: the specification of a job, and its runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import FailFast, Field, StrictBool, StrictInt, field_validator, model_validator

from dovetail.executor.jobs.words import Words, brief
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

MOST_AFTER: Final = 1000
"""Most jobs that one job may wait for."""

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
    """

    command: Annotated[tuple[Text, ...], FailFast(), Field(min_length=1, max_length=10_000)]
    workload: Name
    owner: Owner
    cwd: Text
    env: FrozenMapping[Text, Text] = Field({})
    name: Name | None = None
    workers: Count = 1
    gsla: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] | None = None
    weight: Positive = 1.0
    priority: Literal["batch", "latency"] = "batch"
    nice: Annotated[StrictInt, Field(ge=-MOST_NICE, le=MOST_NICE)] = 0
    isolation: Literal["blocks"] | None = None
    memory_mib: Positive | None = None
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

    @property
    def key(self) -> WorkloadKey:
        """Identity of its workload: the owner's user id and the name."""
        return self.owner.uid, self.workload

    def changed(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with other values in the named fields, checked like a new record.

        Unchanged fields stay the same objects, because jobs of an array share long words.

        Raises
        ------
        InputError
            If the changed record breaks a rule.
        """
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


FIXED: Final = (
    "owner",
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
        on the devices where its share is ``idle``.
    """

    id: Name
    job: Name
    spec: JobSpec
    seats: Annotated[tuple[Seat, ...], Field(min_length=1)]
    sub_batch: Count | None = None
    isolated: StrictBool = False

    def share_on(self, gpu: str) -> AnyShare:
        """Return its share of a device; None if it has no cap there or does not use the device."""
        return next((seat.share for seat in self.seats if seat.gpu == gpu), None)

    def isolated_on(self, seat: Seat) -> bool:
        """Return whether its kernel launches on a device are intercepted."""
        return self.isolated and (self.spec.priority == "latency" or seat.share == IDLE)

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
