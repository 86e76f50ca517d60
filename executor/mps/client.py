"""What a client of MPS has in its environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dovetail.executor.mps.control import DEVICES, PIPE_DIRECTORY
from dovetail.executor.mps.errors import MpsRefusedError

PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"

_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_uuid(uuid: str) -> str:
    """Return the UUID of a whole GPU.

    Raises
    ------
    MpsRefusedError
        It is an index (the daemon renumbers what its clients see) or a MIG instance.
    """
    if _UUID.fullmatch(uuid) is None:
        raise MpsRefusedError(f"{uuid!r}: MPS needs the UUID of a whole GPU (GPU-xxxxxxxx-...)")
    return uuid


def client_environment(
    directory: Path, uuid: str, share: int | None, memory_mib: float | None, latency: bool
) -> dict[str, str]:
    """Return the variables of a client of the daemon at ``directory``.

    The client sees one GPU, so its memory limit is that of device 0. Batch jobs run at a priority
    below normal, jobs that must answer fast at the normal one; for CUDA it is a hint.
    """
    found = {
        DEVICES: check_uuid(uuid),
        PIPE_DIRECTORY: str(directory),
        PRIORITY: "0" if latency else "1",
    }
    if share is not None:
        found[PERCENTAGE] = str(_within(share, 1, 100, "share"))
    if memory_mib is not None:
        found[MEMORY] = f"0={_within(int(memory_mib), 1, 2**31, 'memory_mib')}M"
    return found


def _within(value: int, least: int, most: int, name: str) -> int:
    if not least <= value <= most:
        raise MpsRefusedError(f"{name}: must be from {least} to {most}, got {value}")
    return value
