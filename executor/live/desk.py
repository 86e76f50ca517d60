"""What people may ask of the service, whatever face they ask through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from dovetail.instances.errors import DovetailError

if TYPE_CHECKING:  # a client needs the errors only
    from dovetail.executor.live.jobs import JobSpec, Owner
    from dovetail.executor.live.views import JobView, ServiceView
    from dovetail.instances.instance import Instance
    from dovetail.instances.plan import Plan


class RefusedError(DovetailError):
    """A request that this user may not make."""


class UnknownJobError(DovetailError):
    """There is no such job."""


class BusyError(DovetailError):
    """The service cannot make a request durable now (its disk is full, say): nothing was done."""


class Chosen(NamedTuple):
    """Which jobs a list is to have: all where nothing is said.

    Attributes
    ----------
    user, name, state : str or None
        Of this user, of this name, in this state.
    within_s : float or None
        Over, and since no more than so many seconds.
    before : str or None
        Submitted before this job.
    limit : int or None
        So many at most, the last ones that were submitted.
    """

    user: str | None = None
    name: str | None = None
    state: str | None = None
    within_s: float | None = None
    before: str | None = None
    limit: int | None = None


EVERY: Final = Chosen()


class Desk(Protocol):
    """The service as its faces know it; every method may be called from any thread.

    What changes something returns once it is durable. ``by`` is the user who asks, known from
    the connection; uid 0 and the user whom the service runs as are administrators.
    """

    def submit(self, specs: Sequence[JobSpec], by: Owner, key: str = "") -> tuple[str, ...]:
        """Accept jobs, all or none, and return their ids.

        A key makes it safe to ask again where no answer came: whatever else the same user asks
        under it gets the ids of the first time, as long as the service knows these jobs.

        Raises
        ------
        InputError
            When a job can never run here, or may not run as its owner, or the key was used for
            other jobs.
        BusyError
            When it cannot be made durable.
        """
        ...

    def cancel(self, job: str, by: Owner, grace_s: float | None = None) -> JobView:
        """Begin to end a job; one that is over stays as it is.

        A grace that is given (seconds from now to being killed) may shorten the job's own, also
        while the job is being stopped; it lengthens none.

        Raises
        ------
        UnknownJobError, RefusedError, BusyError
        """
        ...

    def hold(self, job: str, on: bool, by: Owner) -> JobView:
        """Let a job that waits not start before it is released, or release it.

        Raises
        ------
        UnknownJobError, RefusedError, BusyError
        """
        ...

    def edit(self, job: str, changes: Mapping[str, Any], by: Owner) -> JobView:
        """Change fields of the ``JobSpec`` of a job that waits.

        Its owner alone may, as it runs with his rights; an administrator may change its ``nice``.

        Raises
        ------
        InputError
            When a field breaks a rule, or cannot be changed (any more).
        UnknownJobError, RefusedError, BusyError
        """
        ...

    def pause(self, job: str, on: bool, by: Owner) -> JobView:
        """Let the processes of a job that runs stand still where they are, or go on.

        Raises
        ------
        UnknownJobError, RefusedError, BusyError
        """
        ...

    def requeue(self, job: str, by: Owner, hold: bool = False) -> JobView:
        """Stop a job's run, so that it waits for devices again; one that waits stays as it is.

        With ``hold`` it is held, too.

        Raises
        ------
        UnknownJobError, RefusedError, BusyError
        """
        ...

    def drain(self, gpus: Sequence[str], on: bool, by: Owner) -> ServiceView:
        """Let devices (none named: all) take no new jobs, or take them again.

        Raises
        ------
        InputError, RefusedError, BusyError
        """
        ...

    def jobs(self, over: bool = False, chosen: Chosen = EVERY) -> Sequence[JobView]:
        """Return the jobs that are not over, or all, in the order of submission.

        Those that are over are among them, too, where they are asked for by state or end. Views
        of many jobs have no history.

        Raises
        ------
        InputError
            When a job is named that never was.
        """
        ...

    def job(self, job: str) -> JobView:
        """Return one job with its history.

        Raises
        ------
        UnknownJobError
        """
        ...

    def is_over(self, job: str) -> bool:
        """Return whether a job is over; costs next to nothing.

        Raises
        ------
        UnknownJobError
        """
        ...

    def service(self) -> ServiceView:
        """Return the service and its devices."""
        ...

    def log_path(self, job: str, rank: int, by: Owner, run: int | None = None) -> str | None:
        """Return the newest log file of a rank, None before it has one.

        Of its present or last run, or of an earlier one by its number.

        Raises
        ------
        UnknownJobError, RefusedError, InputError
        """
        ...

    def instance(self) -> Instance:
        """Return the round that the service would solve now."""
        ...

    def plan(self) -> Plan:
        """Return what the service's policy would do now, without doing it."""
        ...

    def explain(self, job: str) -> str:
        """Say why a job waits and what would let it start.

        Raises
        ------
        UnknownJobError
        """
        ...
