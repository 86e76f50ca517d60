"""Whether devices are free: what the checker of plans cannot know of a start. Unknown is busy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState

_LEAVING = frozenset({JobState.STOPPING, JobState.LOST})


def why_not_free(
    run: Run,
    machine: StateMachine,
    residents: Mapping[str, Sequence[LiveJob]],
    strays: Mapping[str, str],
) -> str | None:
    """Return why a run may not have its devices now; None where all are known to take it.

    Parameters
    ----------
    run : Run
        What is to start.
    machine : StateMachine
        Whose devices they are.
    residents : mapping of str to sequence of LiveJob
        The jobs that hold each of them (``StateMachine.residents``).
    strays : mapping of str to str
        Devices that runs of no job may still hold, and which.
    """
    for gpu in (seat.gpu for seat in run.seats):
        device = machine.devices.get(gpu)
        if device is None or device.trouble:
            return f"{gpu} {device.trouble if device else 'is no device of the pool'}"
        leaving = [job.id for job in residents[gpu] if job.state in _LEAVING]
        holder = strays.get(gpu) or next(iter(leaving), None)
        if holder:
            return f"{holder} may still be on {gpu}"
    # What is told of a stray is not told of the run that has its name.
    return f"{run.id} is another run until that has ended" if run.id in strays.values() else None
