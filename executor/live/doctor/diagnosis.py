"""Everything that is looked at, in one order, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from dovetail.executor.live.doctor.driver import Driver, Places, driver
from dovetail.executor.live.doctor.finding import Finding, Level, Usable
from dovetail.executor.live.doctor.gpus import gpu_findings, lost, unusable
from dovetail.executor.live.doctor.jobs_python import jobs_python
from dovetail.executor.live.doctor.machine import machine
from dovetail.executor.live.doctor.mps import mps_findings
from dovetail.executor.live.doctor.service import holder, service
from dovetail.executor.live.doctor.shares import (
    ShareTable,
    evidence_in,
    share_findings,
    share_table,
)
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.nvml import Gpu, Nvml, NvmlError
from dovetail.executor.live.splits import Splits
from dovetail.instances.errors import UnsupportedError

_PLACES = Places()


class Preflight(NamedTuple):
    """What is to be looked at.

    Attributes
    ----------
    directory, socket : Path
        The state directory and the UNIX socket that the service would use.
    mps_directory : Path
        Where the service would have its MPS daemons.
    python : str
        The Python that jobs use.
    address : tuple of str and int, optional
        Host and port, where the service is to listen on TCP, too.
    """

    directory: Path
    socket: Path
    mps_directory: Path
    python: str
    address: tuple[str, int] | None = None


class Diagnosis(NamedTuple):
    """All findings, what is known of the shares of each GPU model, and the verdict."""

    findings: tuple[Finding, ...]
    shares: tuple[ShareTable, ...]
    usable: Usable


class _Seen(NamedTuple):
    """What NVML has told."""

    driver: Driver | NvmlError | UnsupportedError
    gpus: tuple[Gpu, ...] = ()
    findings: tuple[Finding, ...] = ()


def diagnose(
    what: Preflight, open_nvml: Callable[[], Nvml] = Nvml, places: Places = _PLACES
) -> Diagnosis:
    """Look at this machine; nothing is changed.

    Parameters
    ----------
    what : Preflight
        What is to be looked at.
    open_nvml : callable
        Opens a session with NVML.
    places : Places
        Where the kernel tells of the driver.
    """
    mps = MpsManager(what.mps_directory)
    seen = _seen(mps, open_nvml)
    told = seen.driver if isinstance(seen.driver, Driver) else None
    base = [*machine(), *service(what.directory, what.socket, what.address)]
    splits, unread = evidence_in(what.directory)
    used = {gpu.name: gpu for gpu in seen.gpus if unusable(gpu) is None}
    version = told.version if told is not None else ""
    serving = holder(what.directory) is not None
    findings = (
        *base,
        *driver(seen.driver, places),
        *seen.findings,
        *mps_findings(what.mps_directory, version or None, serving=serving),
        *jobs_python(what.python, told),
        *unread,
        *(one for name in used for one in share_findings(splits, name, version)),
    )
    tables = [share_table(splits, gpu.name, version, gpu.sms) for gpu in used.values()]
    sound = all(finding.level is not Level.BROKEN for finding in base)
    return Diagnosis(
        findings,
        tuple(table for table in tables if table.rows),
        _usable(tuple(used), splits, version, mps) if sound and used else Usable.NOT,
    )


def _seen(mps: MpsManager, open_nvml: Callable[[], Nvml]) -> _Seen:
    """Ask NVML for all that it is asked."""
    with ExitStack() as session:
        try:
            nvml = session.enter_context(open_nvml())
            gpus, told = nvml.gpus(), Driver(nvml.driver(), nvml.cuda())
            return _Seen(told, gpus, tuple(_gpus(nvml, gpus, mps)))
        except (NvmlError, UnsupportedError) as error:
            return _Seen(error)


def _gpus(nvml: Nvml, gpus: tuple[Gpu, ...], mps: MpsManager) -> Iterator[Finding]:
    for told in nvml.lost:
        yield lost(told)
    if not gpus and not nvml.lost:
        yield Finding("gpu.none", "the driver runs, and there is no GPU", Level.BROKEN, "see above")
    for gpu in gpus:
        yield from gpu_findings(nvml, gpu, mps)


def _usable(models: tuple[str, ...], splits: Splits, version: str, mps: MpsManager) -> Usable:
    shares = any(splits.allowed_anywhere(model, version) for model in models)
    return Usable.PARTITIONED if shares and mps.why_not() is None else Usable.UNPARTITIONED
