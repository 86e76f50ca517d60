"""How figures are told, in the terminal and in pages alike."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

MIB_PER_GIB = 1024.0

NO_FIGURE = "-"


def share_told(share: int | None) -> str:
    """Return a share of a GPU's SMs."""
    return "no cap" if share is None else f"{share} %"


def two_digits(value: float | None) -> str:
    """Return a slowdown or a limit of one."""
    return NO_FIGURE if value is None else f"{value:.2f}"


def gsla(accepted: float | None, priority: str) -> str:
    """Return what a job accepts: a slowdown, or a growth of its p99 latency."""
    critical = accepted is not None and priority == "latency"
    return f"p99 {accepted:.2f}" if critical else two_digits(accepted)


def figure(value: float, digits: int = 6) -> str:
    """Return a value with so many significant digits, written out without a power of ten."""
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def count(value: float) -> str:
    """Return a count; a mean of counts with one digit."""
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def number(amount: int, thing: str) -> str:
    """Return so many things, in the plural unless it is one."""
    return f"{amount:,} {thing}" if amount == 1 else f"{amount:,} {thing}s"


def gib(mib: float) -> str:
    """Return an amount of memory in GiB, without the unit."""
    return f"{mib / MIB_PER_GIB:.1f}"


def percent(part: float) -> str:
    """Return a part as per cent."""
    return f"{part:.2%}".replace("%", " %")


def seconds(time_s: float | None) -> str:
    """Return a run time; empty where there is none."""
    if time_s is None:
        return ""
    return f"{time_s:.2f} s" if time_s >= 0.1 else f"{time_s * 1000:.0f} ms"


def counted(kinds: Mapping[str, int]) -> str:
    """Return how often each kind occurs."""
    return ", ".join(f"{amount} {kind}" for kind, amount in kinds.items())
