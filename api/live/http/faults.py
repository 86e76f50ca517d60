"""Names and error records that both ends of the HTTP API share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dovetail.executor.live.errors import BusyError, RefusedError, TooManyError, UnknownJobError
from dovetail.instances.errors import DovetailError, InputError, UnsupportedError

TOKEN_VARIABLE: Final = "DOVETAIL_TOKEN"
"""The environment variable with the token of a client's user."""

KEY_HEADER: Final = "Idempotency-Key"
"""The header that identifies a submission, so that repeating it accepts no job twice."""

LACK_HEADER: Final = "Dovetail-Log-Lack"
"""The header of a log that says, percent-encoded, why newer output may be missing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in one line; ``kind`` is for programs."""

    kind: str
    error: str


class ServiceFailedError(DovetailError):
    """The service could not answer a request, through no fault of the user."""


FAULTS: Final[Mapping[str, tuple[type[DovetailError], int]]] = MappingProxyType(
    {
        "unknown_job": (UnknownJobError, 404),
        "refused": (RefusedError, 403),
        "busy": (BusyError, 503),
        "input": (InputError, 422),
        "too_many": (TooManyError, 429),
        "unsupported": (UnsupportedError, 422),
        "failed": (ServiceFailedError, 500),
    }
)
"""Every kind of error: its class in service and client, and its HTTP status."""


def fault_of(error: DovetailError) -> tuple[Fault, int]:
    """Return the record of an error, and its HTTP status."""
    for kind, (raised, status) in FAULTS.items():
        if isinstance(error, raised):
            return Fault(kind=kind, error=str(error)), status
    return Fault(kind="failed", error=str(error)), 500


def error_of(fault: Fault) -> DovetailError:
    """Return the exception that the client raises for an error of the service."""
    raised, _ = FAULTS.get(fault.kind, (ServiceFailedError, 0))
    return raised(fault.error)
