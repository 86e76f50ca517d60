"""Slurm's lists of nodes, like ``n[1-3,07],login``."""

from __future__ import annotations

import re
from collections.abc import Sequence


def hostnames(text: str) -> tuple[str, ...]:
    """Return the nodes that a list names, in its order."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    return tuple(node for part in parts for node in _expanded(part))


def _expanded(text: str) -> Sequence[str]:
    head, bracket, rest = text.partition("[")
    if not bracket:
        return [text]
    ranges, _, tail = rest.partition("]")
    numbers = [number for part in ranges.split(",") for number in _range(part)]
    return [f"{head}{number}{end}" for number in numbers for end in _expanded(tail)]


def _range(text: str) -> Sequence[str]:
    if not re.fullmatch(r"\d+(-\d+)?", text, re.ASCII):
        return [text]
    first, _, last = text.partition("-")
    return [f"{k:0{len(first)}d}" for k in range(int(first), int(last or first) + 1)]
