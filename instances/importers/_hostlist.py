"""Slurm's lists of nodes, like ``n[1-3,07],login``."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from dovetail.instances.errors import InputError

MOST_NAMES = 100_000
"""The most names of a list: a few characters can mean any number."""


def hostnames(text: str) -> tuple[str, ...]:
    """Return the nodes that a list names, in its order.

    Raises
    ------
    InputError
        When it names more than ``MOST_NAMES``.
    """
    parts = [_choices(part) for part in re.findall(r"(?:[^,\[]|\[[^\[\]]*\])+", text)]
    if sum(math.prod(map(len, choices)) for choices in parts) > MOST_NAMES:
        raise _too_many()
    return tuple("".join(words) for choices in parts for words in itertools.product(*choices))


def _choices(text: str) -> list[Sequence[str]]:
    """Return the alternatives of each piece of a name: itself, or the numbers of a bracket."""
    pieces = re.split(r"\[([^\[\]]*)\]", text)
    return [_numbers(piece) if k % 2 else [piece] for k, piece in enumerate(pieces)]


def _numbers(text: str) -> Sequence[str]:
    numbers: list[str] = []
    for part in text.split(","):
        numbers += _range(part)
        if len(numbers) > MOST_NAMES:
            raise _too_many()
    return numbers


def _range(text: str) -> Sequence[str]:
    if not re.fullmatch(r"\d{1,18}(-\d{1,18})?", text, re.ASCII):
        return [text]
    first, _, last = text.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    if len(numbers) > MOST_NAMES:
        raise _too_many()
    return [f"{k:0{len(first)}d}" for k in numbers]


def _too_many() -> InputError:
    return InputError(f"must name at most {MOST_NAMES}, names more")
