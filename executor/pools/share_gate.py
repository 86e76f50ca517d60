"""What a pool knows about which shares compute correctly, and how it can find out about others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from dovetail.executor.gpus.splits import SplitEvidence, SplitKey, Splits
from dovetail.executor.jobs.specs import Run
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import plugins

WANTED: Final = (50, 25, 75, 10, 90)
"""The shares of which policies make splits, the most useful first."""

_log = logging.getLogger(__name__)


class TriedShare(NamedTuple):
    """A share that a program has tried, and where.

    Attributes
    ----------
    gpu_model, driver : str
        Conditions of the measurement; the program reports the library.
    share : int
        The share in per cent.
    sms : int or None
        Number of SMs of the whole device, if known.
    """

    gpu_model: str
    driver: str
    share: int
    sms: int | None


class ShareProgram(Protocol):
    """Finds out whether a share computes correctly, as a run of a pool at this share.

    Attributes
    ----------
    patience_s : float
        Seconds within which it must end.
    """

    patience_s: float

    def command(self, python: str) -> Sequence[str]:
        """Return program and arguments for a Python with the jobs' library."""
        ...

    def evidence(self, tried: TriedShare, lines: Sequence[str]) -> SplitEvidence:
        """Return what a run that ended with status 0 has found, given its last lines.

        Raises
        ------
        DovetailError
            If they say nothing about the share.
        """
        ...


def _nobody(_: str) -> Collection[int]:
    return ()


def _no_python(_: Run) -> str:
    return ""


@dataclass
class ShareGate:
    """The shares of a pool's devices that are proven to compute correctly.

    Attributes
    ----------
    splits : Splits
        All evidence.
    driver : str
        The driver of the devices.
    program : ShareProgram or None
        Measures further shares; None if that is impossible.
    why_not : str
        Why it is impossible; empty if it is not.
    enforced : bool
        Whether the pool can enforce shares at all.
    offers : tuple of int
        The shares that the pool can enforce and wants to know about, the most useful first.
    library : str
        The library that counts for every job, if it is the same for all; then no job's Python is
        needed to measure.
    workload : str
        The workload of the program's runs.
    python_of : callable
        Returns a Python that has the library of a run; empty if none is known.
    strangers : callable
        Returns the processes on an idle device that are not the pool's.
    """

    splits: Splits
    driver: str
    program: ShareProgram | None = None
    why_not: str = ""
    enforced: bool = True
    offers: tuple[int, ...] = WANTED
    library: str = ""
    workload: str = "shares"
    python_of: Callable[[Run], str] = field(default=_no_python)
    strangers: Callable[[str], Collection[int]] = field(default=_nobody)

    def allowed(self, library: str, model: str) -> tuple[int, ...]:
        """Return the shares of a model that compute correctly with a library, ascending."""
        return self.splits.allowed(SplitKey(model, self.driver, self.library or library))

    def refused(self, library: str, model: str) -> tuple[int, ...]:
        """Return the shares of a model that compute wrongly with a library, ascending."""
        return self.splits.refused(SplitKey(model, self.driver, self.library or library))

    def allowed_anywhere(self, models: Collection[str]) -> set[int]:
        """Return the shares that compute correctly on one of the models with some library."""
        found = (self.splits.allowed_anywhere(model, self.driver) for model in models)
        return set().union(*found)

    def libraries(self, models: Collection[str]) -> set[str]:
        """Return the libraries with which shares of one of the models were measured."""
        return {one for model in models for one in self.splits.libraries(model, self.driver)}

    def missing(self, library: str, model: str) -> tuple[int, ...]:
        """Return the wanted shares of a model without evidence for a library, first ones first."""
        known = self.splits.covered(SplitKey(model, self.driver, library))
        return tuple(share for share in self.offers if share not in known)

    def learn(self, found: SplitEvidence) -> None:
        """Add a measurement."""
        self.splits = Splits(evidence=(*self.splits.evidence, found), sms=self.splits.sms)


def by_use(shares: Collection[int]) -> tuple[int, ...]:
    """Return shares with those of ``WANTED`` first."""
    first = [share for share in WANTED if share in shares]
    return (*first, *sorted(set(shares) - set(first)))


def find_program() -> tuple[ShareProgram | None, str]:
    """Return the first installed program that measures shares of GPUs, or None and why not."""
    why_not = "no installed package measures shares"
    for plugin in plugins("evidence").values():
        try:
            found: ShareProgram = plugin.call()
        except UnsupportedError as error:
            why_not = str(error)
            _log.warning("no share is measured: %s", error)
        else:
            return found, ""
    return None, why_not
