"""A processor core that stands in for a GPU: real processes and real contention, no CUDA.

Workers take turns on the core as the kernel lets them, whatever the campaign calls the way of
sharing. Nothing keeps others from the core, so that no figure of it is one of a GPU, nor of an
idle machine; how much they took of it is told.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dovetail.executor.live.pools.cpu import CpuPool
from dovetail.executor.live.pools.submissions import Submissions
from dovetail.executor.measuring.campaign import Mode
from dovetail.executor.measuring.devices.device import Facts
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.worker import Event

_ONE_THREAD: Final = MappingProxyType({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})


class CpuDevice:
    """The last core that this process may use (a ``Device``).

    Parameters
    ----------
    directory : path
        The state directory of its pool.
    """

    kind = "cpu"
    env: Mapping[str, str] = _ONE_THREAD

    def __init__(self, directory: Path) -> None:
        self._pool = CpuPool(directory)
        (node,) = self._pool.cluster().nodes
        *_, core = node.gpus or ()
        self.gpu, self._memory_mib = core.id, core.memory_mib
        self._submissions = Submissions(self._pool)

    @property
    def facts(self) -> Facts:
        """The core, and that it is one."""
        return Facts(
            gpu_model="cpu-1-core",
            stand_in=f"one processor core ({processor_model()}): no figure here is one of a GPU",
            memory_mib=self._memory_mib,
        )

    def why_not(self, seat: Seat) -> str | None:
        """Return why a cap cannot be kept here."""
        if seat.share is not None and self._pool.shares == "none":
            return "a cap needs control groups that limit CPU time, and none can be made here"
        return None

    def opened(self, mode: Mode) -> Submissions:
        """Return the way to the pool: the ways of sharing are one here."""
        return self._submissions

    def unconfirmed(self, seat: Seat, ready: Event) -> str | None:
        """Return nothing: the pool asks the kernel."""
        return None

    def energy_j(self) -> float | None:
        """Return nothing: there is no counter."""
        return None

    def trouble(self) -> str:
        """Return nothing: a core has no trouble."""
        return ""

    def recover(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End all workers, and remove their groups."""
        self._submissions.close()


def processor_model() -> str:
    """Return the name that the processor has in /proc/cpuinfo, else its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
