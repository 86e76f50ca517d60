"""Names of metrics of GPUs, their units, and the numbers in cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError

FRACTIONS: Final = ("gpu_util", "mem_util", "sm_active", "dram_active", "sm_occupancy")
MEMORY: Final = ("memory_mib", "free_mib", "reserved_mib", "card_mib")
QUANTITIES: Final = (*FRACTIONS, *MEMORY, "pcie_rx_bytes_s", "power_w")
"""What samples tell of a GPU, each in one unit."""

_UNITS: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        **dict.fromkeys(("%", "percent", "percentage", "pct", "perc"), ("fraction", 0.01)),
        **dict.fromkeys(("ratio", "fraction", "frac"), ("fraction", 1.0)),
        **dict.fromkeys(("bytes", "byte", "b"), ("memory", 2.0**-20)),
        **dict.fromkeys(("kib", "kb"), ("memory", 2.0**-10)),
        **dict.fromkeys(("mib", "mb"), ("memory", 1.0)),
        **dict.fromkeys(("gib", "gb"), ("memory", 2.0**10)),
        **dict.fromkeys(("watts", "watt", "w"), ("power", 1.0)),
        **dict.fromkeys(("milliwatts", "mw"), ("power", 1e-3)),
        **dict.fromkeys(("bytes_s", "bytes_per_second", "b_s"), ("rate", 1.0)),
        **dict.fromkeys(("kib_s", "kb_s"), ("rate", 2.0**10)),
        **dict.fromkeys(("mib_s", "mb_s"), ("rate", 2.0**20)),
    }
)
"""What a unit measures, and the factor to the unit of its quantity. MB are taken as MiB, and so on:
people mean that, and more memory is the safer reading."""

_BY_NAME: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "gpu_util": (
            *("gpu_util", "gpu_utilization", "gpu_utilisation", "utilization_gpu", "gpu_load"),
            *("gpu_usage", "gpu_duty_cycle", "duty_cycle", "accelerator_duty_cycle"),
            "container_accelerator_duty_cycle",
        ),
        "mem_util": ("mem_util", "gpu_mem_util", "mem_copy_util", "utilization_memory"),
        "sm_active": ("sm_active", "sm_activity", "gpu_sm_active"),
        "dram_active": ("dram_active", "dram_activity", "gpu_dram_active"),
        "sm_occupancy": ("sm_occupancy", "gpu_sm_occupancy"),
        "memory_mib": (
            *("memory_used", "mem_used", "gpu_memory_used", "gpu_mem_used", "gpu_memory_usage"),
            *("used_memory", "used_gpu_memory", "fb_used", "vram_used", "gpu_memory", "gpu_mem"),
            *("accelerator_memory_used", "container_accelerator_memory_used", "memory"),
        ),
        "free_mib": ("memory_free", "gpu_memory_free", "fb_free"),
        "reserved_mib": ("memory_reserved", "fb_reserved"),
        "card_mib": (
            *("memory_total", "gpu_memory_total", "fb_total", "card"),
            *("accelerator_memory_total", "container_accelerator_memory_total"),
        ),
        "pcie_rx_bytes_s": ("pcie_rx",),
        "power_w": ("power", "power_draw", "gpu_power", "power_usage", "gpu_power_draw"),
    }
)

_DCGM: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        "dev_gpu_util": ("gpu_util", 0.01),
        "dev_mem_copy_util": ("mem_util", 0.01),
        "dev_fb_used": ("memory_mib", 1.0),
        "dev_fb_free": ("free_mib", 1.0),
        "dev_fb_reserved": ("reserved_mib", 1.0),
        "dev_fb_total": ("card_mib", 1.0),
        "dev_power_usage": ("power_w", 1.0),
        "prof_sm_active": ("sm_active", 1.0),
        "prof_sm_occupancy": ("sm_occupancy", 1.0),
        "prof_dram_active": ("dram_active", 1.0),
        "prof_pcie_rx_bytes": ("pcie_rx_bytes_s", 1.0),
    }
)
"""Fields of DCGM without their ``DCGM_FI_``, with the factor of their documented unit."""

_EXPORTERS: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        "nvidia_gpu_duty_cycle": ("gpu_util", 0.01),
        "container_accelerator_duty_cycle": ("gpu_util", 0.01),
        "kubernetes_io_container_accelerator_duty_cycle": ("gpu_util", 0.01),
        **{f"dcgm_fi_{name}": found for name, found in _DCGM.items()},
    }
)
"""Metrics whose unit is documented, but not in the name."""

_QUANTITY_OF: Final = MappingProxyType(
    {name: quantity for quantity, names in _BY_NAME.items() for name in names}
)
_PREFIXES: Final = ("nvidia_smi_", "nvidia_", "kubernetes_io_")
_KIND: Final = MappingProxyType(
    {
        **dict.fromkeys(FRACTIONS, "fraction"),
        **dict.fromkeys(MEMORY, "memory"),
        "pcie_rx_bytes_s": "rate",
        "power_w": "power",
    }
)
_MISSING: Final = frozenset(
    {
        *("", "-", "n/a", "[n/a]", "nan", "null", "none", "na", "undefined", "err!"),
        *("[not supported]", "not supported", "[unknown error]", "[insufficient permissions]"),
        *("[gpu is lost]", "[gpu requires reset]", "[not available]"),
        "[requested functionality has been deprecated]",
    }
)
_BLANK: Final = 1.4e14
"""From this number on, DCGM means that it has no value."""
_MOST_MIB: Final = 1e7
_NOISE: Final = 1.01
"""Profiling counters may be this far above all of the time."""


class GpuMetric(NamedTuple):
    """What a name says of numbers: one of ``QUANTITIES``, and the factor to its unit.

    The factor is NaN if the name does not say the unit.
    """

    quantity: str
    factor: float


def metric_of(name: str) -> GpuMetric | None:
    """Return what a name of a column or of a metric says; None if it is none that is read."""
    words, _, unit = name.partition("[")
    base = _plain(words)
    if base in _EXPORTERS:
        return GpuMetric(*_EXPORTERS[base])
    if base.startswith("dcgm_fi_"):
        return None
    for prefix in ("", *_PREFIXES):
        if base.startswith(prefix):
            metric = _named(base.removeprefix(prefix), unit.strip(" ]").lower())
            if metric:
                return metric
    return None


def metric_in(name: str) -> GpuMetric | None:
    """Return the metric that the name of a file contains as whole words, the longest that fits.

    Words of memory must say that it is of a GPU.
    """
    words = _plain(name).split("_")
    for length in range(len(words), 0, -1):
        for first in range(len(words) - length + 1):
            part = "_".join(words[first : first + length])
            metric = metric_of(part)
            if metric and part not in ("memory", "card", "power"):
                of_gpu = _KIND[metric.quantity] != "memory" or {"gpu", "fb", "vram"} & set(words)
                return metric if of_gpu else None
    return None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9%]+", "_", text.strip().lower()).strip("_")


def _named(base: str, unit: str) -> GpuMetric | None:
    if base in _QUANTITY_OF:
        return _metric(_QUANTITY_OF[base], unit)
    for length in (1, 2, 3):
        words = base.rsplit("_", length)
        if words[0] in _QUANTITY_OF and len(words) == length + 1:
            return _metric(_QUANTITY_OF[words[0]], "_".join(words[1:]))
    return None


def _metric(quantity: str, unit: str) -> GpuMetric | None:
    if not unit:
        return GpuMetric(quantity, 1.0 if quantity == "power_w" else np.nan)
    kind, factor = _UNITS.get(unit, ("", 0.0))
    if _KIND[quantity] == "rate" and kind == "memory":  # DCGM_FI_PROF_PCIE_RX_BYTES and its kind
        kind, factor = "rate", factor * 2.0**20
    return GpuMetric(quantity, factor) if kind == _KIND[quantity] else None


def factor_of(metric: GpuMetric, most: float, name: str) -> float:
    """Return the factor of a metric whose name does not say the unit, from its largest number.

    A fraction above 1 is a percentage; memory above 1e7 is in bytes.

    Raises
    ------
    InputError
        If the numbers do not say it, either.
    """
    if not np.isnan(metric.factor):
        return metric.factor
    kind = _KIND[metric.quantity]
    if kind == "fraction":
        if most > _NOISE:
            return 0.01
        if most == 0 or metric.quantity not in ("gpu_util", "mem_util"):
            return 1.0
        rule = f"may be fractions or per cent (the largest is {most:.15g}): name it"
        raise InputError(f"{rule} {metric.quantity}_fraction or {metric.quantity}_percent", name)
    if kind == "memory":
        if most > _MOST_MIB or most == 0:
            return 2.0**-20
        rule = f"may be in MiB or another unit (the largest is {most:.15g}): name it"
        raise InputError(f"{rule} memory_used_mib, memory_used_bytes or memory_used_gib", name)
    raise InputError("must have its unit in its name: pcie_rx_bytes_s", name)


def limit_of(metric: GpuMetric, factor: float) -> float:
    """Return the largest number that a metric may have in the unit of its numbers."""
    kind = _KIND[metric.quantity]
    most = {"fraction": _NOISE, "memory": _MOST_MIB, "power": 1e5, "rate": 1e13}[kind]
    return most / factor


def scaled(quantity: str, numbers: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Return numbers in the unit of their quantity; a fraction is at most 1."""
    found = numbers * factor if factor >= 1 else numbers / (1 / factor)
    return np.minimum(found, 1.0) if quantity in FRACTIONS else found


def cell_numbers(
    texts: Sequence[str], refuse: Callable[[int, str], InputError]
) -> NDArray[np.float64]:
    """Return the numbers of cells, NaN for missing ones; a unit after a number is left out.

    Parameters
    ----------
    texts : sequence of str
        The cells.
    refuse : callable
        Makes the error of a cell from its position and the rule.
    """
    try:
        found = numbers_of(texts)
    except ValueError:
        known = {text: _number(text) for text in set(texts)}
        if None in known.values():
            at = next(at for at, text in enumerate(texts) if known[text] is None)
            raise refuse(at, f"must be a number, got {shown(texts[at])}") from None
        found = np.array([known[text] for text in texts], dtype=np.float64)
    found = without_blanks(found)
    if (found < 0).any():
        at = int(np.argmax(found < 0))
        raise refuse(at, f"must be >= 0, got {shown(texts[at])}")
    return found


def numbers_of(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the numbers of texts.

    Raises
    ------
    ValueError
        If one is no number.
    """
    if "_" in "".join(texts):  # Python reads 1_0 as a number
        raise ValueError
    return np.fromiter(map(float, texts), np.float64, len(texts))


def without_blanks(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers with NaN for those that mean that there is no value."""
    return np.where(np.isfinite(numbers) & (numbers < _BLANK), numbers, np.nan)


def _number(text: str) -> float | None:
    """Return the number of a cell, NaN for a missing one, None for another text."""
    cell = text.strip()
    if cell.lower() in _MISSING:
        return np.nan
    match = _WITH_UNIT.fullmatch(cell)
    return float(match[1]) if match else None


_WITH_UNIT: Final = re.compile(
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf)\s*(?:%|MiB|W|MB)?", re.IGNORECASE
)


def unit_in(texts: Iterable[str]) -> float:
    """Return the factor of the unit that cells have after their number, NaN without one."""
    for text in texts:
        match = re.search(r"(%|MiB|W)\s*$", text)
        if match:
            return _UNITS[match[1].lower()][1]
    return np.nan
