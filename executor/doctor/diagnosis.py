"""All checks of the doctor in order, and the verdict."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.executor.doctor import (
    driver,
    gpus,
    jobs_python,
    machine,
    memory,
    mps,
    plugins,
    service,
    shares,
)
from dovetail.executor.doctor.commands import command
from dovetail.executor.doctor.driver import Driver, DriverFiles
from dovetail.executor.doctor.finding import (
    PARTS,
    Finding,
    Severity,
    Usable,
    broken,
    shares_are_measured,
)
from dovetail.executor.gpus.nvml import GpuLostError, Nvml, NvmlError, NvmlGpu
from dovetail.executor.gpus.python_libraries import Libraries, NoPythonError
from dovetail.executor.gpus.splits import partitioned
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.mps.processes import PROGRAM, every_mps
from dovetail.executor.pools.means import find_means
from dovetail.executor.pools.runs.memory_groups import MemoryGroups
from dovetail.executor.pools.runs.progress import HOOK_DIRECTORY
from dovetail.instances.errors import UnsupportedError

_PLACES = DriverFiles()


class Preflight(NamedTuple):
    """What to check.

    Attributes
    ----------
    directory, socket : Path
        State directory and UNIX socket of the service.
    mps_directory : Path
        Its directory for MPS daemons.
    python : str
        The Python of the jobs.
    address : tuple of str and int, optional
        Host and port, if the service will listen on TCP.
    """

    directory: Path
    socket: Path
    mps_directory: Path
    python: str
    address: tuple[str, int] | None = None


class Diagnosis(NamedTuple):
    """All findings, the table of shares of each GPU model, and the verdict."""

    findings: tuple[Finding, ...]
    shares: tuple[shares.ShareTable, ...]
    usable: Usable


_Check = tuple[str, Finding | Iterable[Finding] | None]
"""Id of a check, and its findings: none, one or several."""


def diagnose(
    what: Preflight, open_nvml: Callable[[], Nvml] = Nvml, places: DriverFiles = _PLACES
) -> Diagnosis:
    """Check this machine without changing it.

    Parameters
    ----------
    what : Preflight
        What to check.
    open_nvml : callable
        Opens a session with NVML.
    places : DriverFiles
        The kernel's files about the driver.
    """
    manager = MpsManager(what.mps_directory)
    found: tuple[NvmlGpu, ...] = ()
    of_gpus: tuple[Finding, ...] = ()
    of_limits: tuple[Finding, ...] = ()
    state: Driver | NvmlError | UnsupportedError
    try:
        with open_nvml() as nvml:
            found, state = nvml.gpus(), Driver(nvml.driver(), nvml.cuda())
            of_gpus = tuple(_of_gpus(nvml, found, manager))
            of_limits = _of_limits(nvml, found)
    except (NvmlError, UnsupportedError) as error:
        state = error
    version = state.version if isinstance(state, Driver) else ""
    used = {gpu.name: gpu for gpu in found if gpus.unusable(gpu) is None}
    module, pid = driver.module_version(places.module), service.holder(what.directory)
    libraries, running = jobs_python.asked(what.python), tuple(every_mps())
    splits, unread = shares.evidence_in(what.directory)
    hook = Path(HOOK_DIRECTORY)
    measure = _measuring(what, libraries) if used else ()
    divided = {
        model: gpu
        for model, gpu in ((partitioned(gpu.name), gpu) for gpu in used.values())
        if splits.libraries(model, version)
    }
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
        ("driver.bus", driver.bus(places.pci, state)),
        ("driver.module", driver.module(module, state)),
        ("driver.nodes", driver.nodes(places.nodes, module)),
        ("driver.bindings", driver.bindings(state)),
        ("driver.nvml", driver.nvml(state)),
        ("driver.xid", driver.past_errors(places.log, module)),
    )
    above = _findings(
        ("mps.control", mps.control(version)),
        ("mps.server", mps.server(version)),
        ("mps.directory", mps.directory(what.mps_directory)),
        ("mps.ours", mps.ours(what.mps_directory, running, serving=pid is not None)),
        ("mps.others", mps.others(what.mps_directory, running)),
        ("jobs.python", jobs_python.interpreter(what.python, libraries)),
        ("jobs.torch", jobs_python.torch(libraries, state)),
        ("jobs.cublas", jobs_python.cublas(libraries, measure)),
        ("shares.evidence", unread),
        ("shares.allowed", shares.allowed(splits, [*used, *divided], version, measure)),
        ("shares.python", shares.python(what.python, libraries) if used else None),
    )
    added = (
        *plugins.added(),
        *_findings(("plugins.names", plugins.names()), ("plugins.imports", plugins.imported())),
    )
    tables = [
        shares.share_table(splits, model, version, gpu.sms)
        for model, gpu in (*used.items(), *divided.items())
    ]
    sound = all(finding.level is not Severity.BROKEN for finding in (*base, *added))
    allowed = any(splits.allowed_anywhere(model, version) for model in used)
    shared = allowed and manager.why_not() is None
    usable = Usable.PARTITIONED if shared else Usable.UNPARTITIONED
    return Diagnosis(
        tuple(sorted((*base, *below, *of_gpus, *above, *of_limits, *added), key=_order)),
        tuple(table for table in tables if table.rows),
        usable if sound and used else Usable.NOT,
    )


def _measuring(what: Preflight, found: Libraries | NoPythonError) -> tuple[str, ...]:
    """Return the command that measures SM shares, if the jobs' Python can."""
    if isinstance(found, NoPythonError) or found.cuda is None or not shares_are_measured():
        return ()
    places = ("--python", what.python, "--directory", what.directory)
    return (command(sys.executable, "-m", "dovetail", "doctor", "--splits", *places),)


def _order(finding: Finding) -> int:
    return PARTS.index(finding.part)


def _findings(*checks: _Check, gpu: str = "") -> tuple[Finding, ...]:
    return tuple(
        one._replace(id=name, gpu=gpu)
        for name, found in checks
        for one in ((found,) if isinstance(found, Finding) else found or ())
    )


def _of_limits(nvml: Nvml, found: Sequence[NvmlGpu]) -> tuple[Finding, ...]:
    """Return what can hold the limits of jobs on the usable GPUs, by trying."""
    uuids = [gpu.uuid for gpu in found if gpus.unusable(gpu) is None]
    if not uuids:
        return ()
    means = find_means(f"dovetail-trial-{os.getpid()}", nvml, uuids, PROGRAM)
    if isinstance(means.groups, MemoryGroups):
        means.groups.close()
    return _findings(
        ("memory.limits", memory.limits(means)),
        ("memory.groups", memory.groups(means)),
        ("mps.partitions", memory.partitions(means)),
        ("mps.namespaces", memory.namespaces(means)),
    )


def _of_gpus(nvml: Nvml, found: tuple[NvmlGpu, ...], manager: MpsManager) -> Iterator[Finding]:
    yield from _findings(("gpu.lost", map(gpus.lost, nvml.lost)))
    if not found and not nvml.lost:
        yield from _findings(
            ("gpu.none", broken("the driver runs, but there is no GPU", "see above"))
        )
    for gpu in found:
        try:
            yield from _of_gpu(nvml, gpu, manager)
        except GpuLostError as error:
            yield from _findings(("gpu.lost", gpus.lost(f"{gpus.short(gpu)}: {error}")))


def _of_gpu(nvml: Nvml, gpu: NvmlGpu, manager: MpsManager) -> tuple[Finding, ...]:
    if (why := gpus.unusable(gpu)) is not None:
        check = "gpu.mig" if gpu.mig else "gpu.compute-mode", why
        return _findings(check, gpu=gpus.short(gpu))
    return _findings(
        ("gpu.model", gpus.model(gpu)),
        ("gpu.compute-mode", gpus.compute_mode(gpu)),
        ("gpu.memory", gpus.memory(nvml.memory_health(gpu.uuid), gpu)),
        ("gpu.profiling", gpus.profiling(nvml, gpu)),
        ("gpu.mps-of-others", gpus.mps_of_others(manager.foreign(gpu.uuid))),
        ("gpu.strangers", gpus.strangers(nvml, gpu)),
        gpu=gpus.short(gpu),
    )
