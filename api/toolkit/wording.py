"""The wording of figures, in the terminal and in pages alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

MIB_PER_GIB = 1024.0

NO_FIGURE = "-"

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def share_text(share: int | str | None) -> str:
    """Return a share of a GPU's SMs."""
    if share is None:
        return "no cap"
    return f"{share}" if share == "idle" else f"{share} %"


def two_digits(value: float | None) -> str:
    """Return a slowdown or a limit of one."""
    return NO_FIGURE if value is None else f"{value:.2f}"


def gsla(accepted: float | None, priority: str) -> str:
    """Return a job's gSLA: a slowdown, or a growth of its p99 latency."""
    critical = accepted is not None and priority == "latency"
    return f"p99 {accepted:.2f}" if critical else two_digits(accepted)


def figure(value: float, digits: int = 6) -> str:
    """Return a value with ``digits`` significant digits, written out without a power of ten."""
    from decimal import Decimal

    return f"{Decimal(f'{value:.{digits}g}'):f}"


def count(value: float) -> str:
    """Return a count; a mean of counts with one digit."""
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def number(amount: int, thing: str) -> str:
    """Return an amount of things, in the plural unless it is one."""
    return f"{amount:,} {thing}" if amount == 1 else f"{amount:,} {thing}s"


def gib(mib: float) -> str:
    """Return an amount of memory in GiB, without the unit."""
    return f"{mib / MIB_PER_GIB:.1f}"


def percent(part: float) -> str:
    """Return a fraction in per cent."""
    return f"{part:.2%}".replace("%", " %")


def seconds(time_s: float | None) -> str:
    """Return a run time; empty if there is none."""
    if time_s is None:
        return ""
    return f"{time_s:.2f} s" if time_s >= 0.1 else f"{time_s * 1000:.0f} ms"


def counted(kinds: Mapping[str, int]) -> str:
    """Return how often each kind occurs."""
    return ", ".join(f"{amount} {kind}" for kind, amount in kinds.items())


def enumerated(names: Sequence[str]) -> str:
    """Return names as in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def lasting(time_s: float) -> str:
    """Return a time in its two largest units: ``2 h 5 min``."""
    left = max(int(time_s), 0)
    for k, (name, size) in enumerate(_UNITS[:-1]):
        if left >= size:
            unit, smaller = _UNITS[k + 1]
            rest = left % size // smaller
            return f"{left // size} {name}" + (f" {rest} {unit}" if rest else "")
    return f"{left} s"
