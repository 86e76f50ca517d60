"""The pool of this machine's processor cores, as stand-ins for GPUs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from dovetail.executor.live.jobs import Run
from dovetail.executor.live.pools.keeper import Bounds
from dovetail.executor.live.pools.local import LocalPool
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Gpu, Node

NOTICE: Final = "processor cores stand in for GPUs: no figure of this pool is one of a GPU"


class CpuPool(LocalPool):
    """Groups of cores as devices; runs on one device share its cores.

    Parameters
    ----------
    directory : path
        The state directory.
    cores_per_device, devices : int
        How many cores are a device, and how many devices there are; by default one core each, as
        many as this process may use.

    Raises
    ------
    InputError
        When there are fewer cores.
    """

    name = "cpu"
    notice = NOTICE

    def __init__(
        self, directory: Path, cores_per_device: int = 1, devices: int | None = None
    ) -> None:
        super().__init__(directory)
        cores = sorted(os.sched_getaffinity(0))
        count = len(cores) // cores_per_device if devices is None else devices
        if not 0 < count * cores_per_device <= len(cores):
            raise InputError(
                f"must take at most the {len(cores)} cores that may be used, "
                f"got {count} devices of {cores_per_device}",
                "--pool",
            )
        self._cores = {
            f"cpu-{k}": tuple(cores[k * cores_per_device : (k + 1) * cores_per_device])
            for k in range(count)
        }

    def cluster(self) -> Cluster:
        """Return the devices."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
        memory = pages // len(self._cores)
        gpus = tuple(
            Gpu(id=device, model=f"cpu-{len(cores)}-core", memory_mib=memory)
            for device, cores in self._cores.items()
        )
        return Cluster(nodes=(Node(id=socket.gethostname(), gpus=gpus),))

    def rank_bounds(self, run: Run, rank: int) -> Bounds:
        """Return the cores of the rank's device."""
        return Bounds(cpus=self._cores[run.seats[rank].gpu])
