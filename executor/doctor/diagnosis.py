"""Everything that is looked at, in one order, and the verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from dovetail.executor.doctor import driver, gpus, jobs_python, machine, mps, service, shares
from dovetail.executor.doctor.driver import Driver, Places
from dovetail.executor.doctor.finding import Finding, Level, Seen, Usable, broken
from dovetail.executor.gpus.nvml import Gpu, GpuLostError, Nvml, NvmlError
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.mps.processes import every_mps
from dovetail.executor.pools.progress import HOOK_DIRECTORY
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
    shares: tuple[shares.ShareTable, ...]
    usable: Usable


_Row = tuple[str, Seen | Iterable[Seen] | None]
"""What was looked at, and what its probe has seen: nothing, one thing, or several."""


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
    manager = MpsManager(what.mps_directory)
    told, found, of_gpus = _asked(manager, open_nvml)
    version = told.version if isinstance(told, Driver) else ""
    used = {gpu.name: gpu for gpu in found if gpus.unusable(gpu) is None}
    module, pid = driver.module_version(places.module), service.holder(what.directory)
    libraries, running = jobs_python.asked(what.python), tuple(every_mps())
    splits, unread = shares.evidence_in(what.directory)
    hook = Path(HOOK_DIRECTORY)
    base = _findings(
        ("machine.system", machine.system()),
        ("machine.user", machine.user()),
        ("machine.clock", machine.clock()),
        ("machine.shm", machine.shared_memory()),
        ("machine.files", machine.open_files()),
        ("machine.progress-hook", machine.progress_hook(hook) if os.geteuid() == 0 else None),
        ("machine.cgroups", machine.control_groups()),
        ("machine.cpu-pool", machine.cores()),
        ("service.directory", service.state(what.directory)),
        ("service.running", service.running(what.directory, pid)),
        ("service.socket", service.unix_socket(what.socket, pid)),
        ("service.port", service.port(what.address)),
    )
    below = _findings(
        ("driver.bus", driver.bus(places.pci, told)),
        ("driver.module", driver.module(module, told)),
        ("driver.nodes", driver.nodes(places.nodes, module)),
        ("driver.bindings", driver.bindings(told)),
        ("driver.nvml", driver.nvml(told)),
        ("driver.xid", driver.past_errors(places.log, module)),
    )
    above = _findings(
        ("mps.control", mps.control(version)),
        ("mps.server", mps.server()),
        ("mps.directory", mps.directory(what.mps_directory)),
        ("mps.ours", mps.ours(what.mps_directory, running, serving=pid is not None)),
        ("mps.pid-file", mps.pid_files(what.mps_directory)),
        ("mps.others", mps.others(what.mps_directory, running)),
        ("mps.stale", mps.stale(running)),
        ("jobs.python", jobs_python.interpreter(what.python, libraries)),
        ("jobs.torch", jobs_python.torch(libraries, told)),
        ("jobs.cublas", jobs_python.cublas(libraries)),
        ("shares.evidence", unread),
        ("shares.allowed", shares.allowed(splits, used, version)),
    )
    tables = [shares.share_table(splits, gpu.name, version, gpu.sms) for gpu in used.values()]
    sound = all(finding.level is not Level.BROKEN for finding in base)
    allowed = any(splits.allowed_anywhere(model, version) for model in used)
    shared = allowed and manager.why_not() is None
    usable = Usable.PARTITIONED if shared else Usable.UNPARTITIONED
    return Diagnosis(
        (*base, *below, *of_gpus, *above),
        tuple(table for table in tables if table.rows),
        usable if sound and used else Usable.NOT,
    )


def _findings(*rows: _Row, gpu: str = "") -> tuple[Finding, ...]:
    return tuple(
        Finding(name, *one, gpu)
        for name, seen in rows
        for one in ((seen,) if isinstance(seen, Seen) else seen or ())
    )


def _asked(
    manager: MpsManager, open_nvml: Callable[[], Nvml]
) -> tuple[Driver | NvmlError | UnsupportedError, tuple[Gpu, ...], tuple[Finding, ...]]:
    """Ask NVML for all that it is asked: of the driver, its GPUs, and each of them."""
    with ExitStack() as session:
        try:
            nvml = session.enter_context(open_nvml())
            found, told = nvml.gpus(), Driver(nvml.driver(), nvml.cuda())
            return told, found, tuple(_of_gpus(nvml, found, manager))
        except (NvmlError, UnsupportedError) as error:
            return error, (), ()


def _of_gpus(nvml: Nvml, found: tuple[Gpu, ...], manager: MpsManager) -> Iterator[Finding]:
    for told in nvml.lost:
        yield from _findings(("gpu.lost", gpus.lost(told)))
    if not found and not nvml.lost:
        yield from _findings(
            ("gpu.none", broken("the driver runs, and there is no GPU", "see above"))
        )
    for gpu in found:
        try:
            yield from _of_gpu(nvml, gpu, manager)
        except GpuLostError as error:
            yield from _findings(("gpu.lost", gpus.lost(f"{gpus.short(gpu)}: {error}")))


def _of_gpu(nvml: Nvml, gpu: Gpu, manager: MpsManager) -> tuple[Finding, ...]:
    if (why := gpus.unusable(gpu)) is not None:
        row = "gpu.mig" if gpu.mig else "gpu.compute-mode", why
        return _findings(row, gpu=gpus.short(gpu))
    return _findings(
        ("gpu.model", gpus.model(gpu)),
        ("gpu.compute-mode", gpus.compute_mode(gpu)),
        ("gpu.memory", gpus.memory(nvml.memory_health(gpu.uuid))),
        ("gpu.profiling", gpus.profiling(nvml, gpu)),
        ("gpu.mps-of-others", gpus.mps_of_others(manager.foreign(gpu.uuid))),
        ("gpu.strangers", gpus.strangers(nvml, gpu)),
        gpu=gpus.short(gpu),
    )
