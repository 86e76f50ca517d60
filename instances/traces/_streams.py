"""Random numbers: one stream per drawn quantity, so that no draw changes another."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from dovetail.instances.errors import InputError


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the stream ``name`` for a seed >= 0.

    Raises
    ------
    InputError
        When the seed is negative.
    """
    if seed < 0:
        raise InputError(f"must be >= 0, got {seed}", "seed")
    return np.random.Generator(np.random.PCG64([seed, crc32(name.encode())]))
