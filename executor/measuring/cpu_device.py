"""A processor core that stands in for a GPU: real processes and real contention, no CUDA.

Workers take turns on the core as the kernel lets them, whatever the campaign calls the way of
sharing. Nothing keeps others from the core, so that no figure of it is one of a GPU, nor of an
idle machine; how much they took of it is told.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dovetail.executor.measuring.device import Device
from dovetail.executor.measuring.records import Facts, Seat
from dovetail.executor.pools.cpu import CpuPool

_ONE_THREAD: Final = MappingProxyType({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})


class CpuDevice(Device):
    """The last core that this process may use.

    Parameters
    ----------
    directory : path
        The state directory of its pool.
    """

    env = _ONE_THREAD

    def __init__(self, directory: Path) -> None:
        self._pool = CpuPool(directory)
        (node,) = self._pool.cluster().nodes
        *_, core = node.gpus or ()
        told = f"one processor core ({processor_model()}): no figure here is one of a GPU"
        facts = Facts(gpu_model="cpu-1-core", stand_in=told, memory_mib=core.memory_mib)
        super().__init__(self._pool, core.id, facts)

    def why_not(self, seat: Seat) -> str | None:
        """Return why a cap cannot be kept here."""
        if seat.share is not None and self._pool.shares == "none":
            return "a cap needs control groups that limit CPU time, and none can be made here"
        return None


def processor_model() -> str:
    """Return the name that the processor has in /proc/cpuinfo, else its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
