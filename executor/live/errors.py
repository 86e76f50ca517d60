"""Errors with which the service refuses well-formed requests."""

from __future__ import annotations

from dovetail.instances.errors import DovetailError


class RefusedError(DovetailError):
    """A request that this user may not make."""


class UnknownJobError(DovetailError):
    """There is no such job."""


class TooManyError(DovetailError):
    """Too many requests of a user wait for answers; nothing was done."""


class BusyError(DovetailError):
    """The service cannot make a request durable now (its disk is full, say); nothing was done."""
