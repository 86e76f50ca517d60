"""The pools of this machine by name, with their options."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError

Enforcement = Literal["quota", "affinity", "none"]
"""How shares are enforced: CPU time of a cgroup, cores, or not at all (then there are none)."""

POOL_NAMES: Final = ("gpu", "cpu", "simulated")
"""The pools of the core."""

_FLAG: Final = "--pool"
_OPTIONS: Final = ("cores_per_device", "devices", "shares", "gate")

MADE_UP_GATE: Final = "gate=made-up"
"""The option of the pools without GPUs whose shares need made-up evidence."""


STATIC_PARTITIONS: Final = "partitions=static"
"""The option of the ``gpu`` pool with which shares are reservations of SMs."""


class CpuOptions(NamedTuple):
    """The options of a ``cpu`` pool.

    Cores per device, number of devices, enforcement of shares, and whether shares need made-up
    evidence.
    """

    cores_per_device: int = 1
    devices: int | None = None
    shares: Enforcement | None = None
    made_up: bool = False


class GpuOptions(NamedTuple):
    """The options of a ``gpu`` pool.

    The ids of its GPUs, empty for all, and whether shares are static partitions.
    """

    only: tuple[str, ...] = ()
    static: bool = False


def pool_options(text: str) -> CpuOptions | GpuOptions:
    """Return the options of the pool that is named by a text.

    Parameters
    ----------
    text : str
        ``gpu`` or ``gpu:ID,ID,partitions=static``; ``cpu`` or
        ``cpu:cores_per_device=N,devices=N,shares=HOW,gate=made-up``.

    Raises
    ------
    InputError
        When the pool or an option of it is unknown, or the value of an option is invalid.
    """
    name, _, options = text.partition(":")
    if name == "cpu":
        return cpu_options(options)
    if name == "gpu":
        return gpu_options(options)
    raise InputError(f"must be one of cpu, gpu, got {name!r}", _FLAG)


def gpu_options(text: str) -> GpuOptions:
    """Return the options of a ``gpu`` pool.

    Parameters
    ----------
    text : str
        ``ID,ID,partitions=static``, any of them.

    Raises
    ------
    InputError
        When an option is unknown, or its value is invalid.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    given = [part for part in parts if "=" in part]
    for part in given:
        if part != STATIC_PARTITIONS:
            raise InputError(f"must be IDs of GPUs or {STATIC_PARTITIONS}, got {part!r}", _FLAG)
    return GpuOptions(tuple(part for part in parts if part not in given), bool(given))


def cpu_options(text: str) -> CpuOptions:
    """Return the options of a ``cpu`` pool.

    Parameters
    ----------
    text : str
        ``cores_per_device=1,devices=2,shares=affinity``, any of them.

    Raises
    ------
    InputError
        When an option is unknown, or its value is invalid.
    """
    options = [part.partition("=") for part in text.split(",") if part]
    given = {name.strip(): value.strip() for name, _, value in options}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise InputError(f"must be one of {', '.join(_OPTIONS)}, got {name!r}", _FLAG)
        if name not in ("shares", "gate") and not re.fullmatch(r"0*[1-9][0-9]{0,5}", value):
            raise InputError(f"{name} must be a whole number >= 1, got {shown(value)}", _FLAG)
    devices, shares = given.get("devices"), given.get("shares")
    if shares not in (None, "quota", "affinity", "none"):
        raise InputError(f"shares must be quota, affinity or none, got {shares!r}", _FLAG)
    if given.get("gate") not in (None, "made-up"):
        raise InputError(f"gate must be made-up, got {shown(given['gate'])}", _FLAG)
    kept_by = cast("Enforcement | None", shares)
    cores = int(given.get("cores_per_device", 1))
    return CpuOptions(cores, int(devices) if devices else None, kept_by, "gate" in given)
