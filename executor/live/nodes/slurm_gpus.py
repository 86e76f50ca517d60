"""Which GPUs of a machine an allocation of Slurm has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dovetail.executor.live.nvml import Nvml, NvmlError
from dovetail.instances.errors import InputError, UnsupportedError

_GLOBAL: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers of device files, whatever a cgroup hides."""

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def within_allocation(pool: str, environment: Mapping[str, str]) -> str:
    """Return an agent's pool, of GPUs with those of its step only.

    Parameters
    ----------
    pool : str
        As ``hosting.opener`` has it; ``cpu`` needs no bounds.
    environment : mapping of str to str
        The step's.

    Raises
    ------
    InputError
        When it names a GPU that the step does not have.
    UnsupportedError
        When the step has no GPU, or they cannot be told apart.
    """
    name, _, asked = pool.partition(":")
    if name != "gpu":
        return pool
    allowed = allocated(environment)
    if not asked:
        return f"gpu:{','.join(allowed)}"
    wanted = [part for part in asked.split(",") if part]
    for part in wanted:
        if not any(uuid.startswith(part) for uuid in allowed):
            raise InputError(f"must be a GPU of the allocation, got {part!r}", "--pool")
    return pool


def allocated(environment: Mapping[str, str]) -> Sequence[str]:
    """Return the UUIDs of a step's GPUs.

    Slurm names GPUs by the number of their device file (``/dev/nvidia3``), which is not always
    the driver's order; a site may set UUIDs instead.

    Raises
    ------
    UnsupportedError
        When there is none.
    """
    visible = _listed(environment.get(_VISIBLE, ""))
    if visible and all(part.startswith("GPU-") for part in visible):
        return visible
    numbers = next(filter(None, (_listed(environment.get(name, "")) for name in _GLOBAL)), ())
    if not numbers:
        raise UnsupportedError("the allocation has no GPU on this node (ask for one by gres)")
    try:
        with Nvml() as nvml:
            by_number = {str(nvml.device_file(gpu.uuid)): gpu.uuid for gpu in nvml.gpus()}
    except NvmlError as error:
        raise UnsupportedError(str(error)) from None
    missing = [number for number in numbers if number not in by_number]
    if missing:
        raise UnsupportedError(f"the driver does not know the allocated GPU {missing[0]}")
    return [by_number[number] for number in numbers]


def _listed(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
