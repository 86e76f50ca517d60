"""From the text of an argument to its value, or to one line that says what it must be."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final

_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def whole(least: int, below: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``least`` on, and below ``below`` if given."""
    rule = f"must be a whole number >= {least}" + ("" if below is None else f" and < {below}")

    def parsed(text: str) -> int:
        if text.isascii() and text.isdecimal():
            number = int(text)
            if least <= number and (below is None or number < below):
                return number
        raise ArgumentTypeError(f"{rule}, got {text!r}")

    return parsed


def finite(text: str) -> float:
    """Return a number that is neither infinite nor NaN."""
    number = _number(text)
    if not math.isfinite(number):
        raise ArgumentTypeError(f"must be a finite number, got {text!r}")
    return number


def confidence(text: str) -> float:
    """Return a probability that is neither 0 nor 1."""
    number = _number(text)
    if not 0 < number < 1:
        raise ArgumentTypeError(f"must be > 0 and < 1, got {text!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def limit(text: str) -> float:
    """Return the seconds of a time limit; inf for none."""
    time_s = _number(text)
    if not time_s >= 0:
        raise ArgumentTypeError(f"must be a number of seconds >= 0, or inf, got {text!r}")
    return time_s


def duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    time_s = float(found[1]) * _SECONDS[found[2]] if found else math.inf
    if time_s == math.inf:
        raise ArgumentTypeError(f"must be a time like 90, 15m, 2h or 1d, got {text!r}")
    return time_s


def names(text: str) -> tuple[str, ...]:
    """Return the names separated by commas, each once."""
    found = (part.strip() for part in text.split(","))
    return tuple(dict.fromkeys(filter(None, found)))


def shares(text: str) -> tuple[int, ...]:
    """Return SM shares in per cent, written with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= 100 for part in parts):
        raise ArgumentTypeError(f"must be whole numbers from 1 to 100, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def pair(shape: str, value: str = ".+") -> Callable[[str], tuple[str, str]]:
    """Return a reader of ``NAME=VALUE``, described by ``shape``, with a value of this pattern."""

    def parsed(text: str) -> tuple[str, str]:
        found = re.fullmatch(f"([^=]+)=({value})", text, re.DOTALL)
        if not found:
            raise ArgumentTypeError(f"must be {shape}, got {text!r}")
        return found[1], found[2]

    return parsed


def one_of(known: Sequence[str], text: str) -> str:
    """Return the text if it is one of the known ones."""
    if text not in known:
        raise ArgumentTypeError(f"must be one of {', '.join(known)}, got {text!r}")
    return text


def address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ArgumentTypeError(f"must be HOST:PORT, got {text!r}")
    return host, int(port)


def output_file(name: str) -> str:
    """Refuse a file name with the ending of a format other than JSON and YAML."""
    ending = PurePath(name.removesuffix(".gz")).suffix
    if ending in (".csv", ".html", ".parquet", ".tsv", ".xlsx"):
        raise ArgumentTypeError(f"is written as JSON or YAML, got {name!r}")
    return name
