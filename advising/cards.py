"""The memory of GPU models, for records that name a model and no memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

CARDS_MIB: Final[tuple[tuple[str, float], ...]] = (
    ("gb300", 284208),
    ("b300", 275040),
    ("gb200", 189471),
    ("b200", 183359),
    ("h200", 143771),
    ("h100 nvl", 95830),
    ("gh200", 97871),
    ("h100", 81559),
    ("h800", 81559),
    ("h20", 97871),
    ("a100 80gb", 81920),
    ("a100 40gb", 40960),
    ("a800", 81920),
    ("l40s", 46068),
    ("l40", 46068),
    ("l4", 23034),
    ("a40", 46068),
    ("a30", 24576),
    ("a10g", 23028),
    ("a10", 23028),
    ("a16", 15356),
    ("a2", 15356),
    ("rtx a6000", 49140),
    ("a6000", 49140),
    ("rtx 6000 ada", 49140),
    ("a5000", 24564),
    ("a4000", 16376),
    ("rtx 4090", 24564),
    ("rtx 3090", 24576),
    ("rtx 2080 ti", 11264),
    ("v100 32gb", 32768),
    ("v100 16gb", 16384),
    ("p100", 16384),
    ("t4", 15360),
    ("k80", 11441),
)
"""Words of a model's name and the MiB that NVIDIA's driver reports for it, rounded by NVIDIA from
board to board; the first match counts. A100 and V100 without a size are not here: both come in two.
"""


def card_of(model: str, recorded_mib: float, given: Mapping[str, float]) -> float:
    """Return the memory of a GPU in MiB, NaN if unknown.

    Parameters
    ----------
    model : str
        Its name, as records write it: ``a100-sxm4-80gb``, ``NVIDIA H200``.
    recorded_mib : float
        What the records say; NaN if they do not.
    given : mapping of str to float
        Memory by model that the user gives, which counts first; upper and lower case are the same.
    """
    by_name = {name.lower(): mib for name, mib in given.items()}
    if model.lower() in by_name:
        return by_name[model.lower()]
    if not math.isnan(recorded_mib):
        return recorded_mib
    return _known(model)


def _known(model: str) -> float:
    """Return the memory of a whole card that is known by name; NaN for parts of cards, too."""
    words = _words(model)
    if _PART.search(model):
        return math.nan
    sizes = {word for word in words if _SIZE.fullmatch(word)}
    for name, mib in CARDS_MIB:
        wanted = _words(name)
        fits = all(abs(int(size[:-2]) * 1024 - mib) < _OFF * mib for size in sizes - wanted)
        if wanted.issubset(words) and fits:
            return mib
    return math.nan


_PART: Final = re.compile(r"(?i)\bmig\b|\dg\.\d+gb|-\d+[abcqs]\b")
"""Instances of MIG and virtual GPUs."""

_SIZE: Final = re.compile(r"\d+gb")
_OFF: Final = 0.08
"""How much a size in a name may differ from what the driver reports."""


def _words(name: str) -> frozenset[str]:
    """Return the words of a name; ``80g`` and ``80 GB`` are ``80gb``."""
    text = re.sub(r"(\d+)\s*(?:gib|gb|g)\b", r" \1gb ", name.lower())
    return frozenset(re.findall(r"[a-z]*\d+[a-z]*|[a-z]+", text))
