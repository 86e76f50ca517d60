"""How files of ``nvidia-smi --query-...`` are recognised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dovetail.advising.readers._times import is_time

_PLAIN: Final = frozenset(
    {
        *("timestamp", "count", "index", "uuid", "name", "gpu_name", "gpu_uuid", "gpu_serial"),
        *("gpu_bus_id", "pid", "process_name", "pstate", "serial", "driver_version"),
    }
)
"""Names of fields without a dot."""

GPUS: Final = (
    *("timestamp", "uuid", "name", "utilization.gpu [%]", "utilization.memory [%]"),
    *("memory.used [MiB]", "memory.total [MiB]", "power.draw [W]"),
)
PROCESSES: Final = ("timestamp", "gpu_uuid", "pid", "process_name", "used_gpu_memory [MiB]")
"""The columns of files without a header, whose names can only be agreed."""


def fields(header: Sequence[str]) -> list[str]:
    """Return the names of columns without their units."""
    return [cell.partition("[")[0].strip() for cell in header]


def is_query(header: Sequence[str]) -> bool:
    """Return whether all columns have names of fields of ``nvidia-smi``."""
    names = fields(header)
    told = any("." in name or name.startswith("used_") for name in names)
    return told and all("." in name or name in _PLAIN or name.startswith("used_") for name in names)


def is_row(cells: Sequence[str]) -> bool:
    """Return whether cells are those of a sample without a header: a time, and a UUID."""
    return (
        len(cells) > 2
        and any(cell.startswith(("GPU-", "MIG-")) for cell in cells)
        and any("/" in cell and is_time(cell) for cell in cells)
    )
