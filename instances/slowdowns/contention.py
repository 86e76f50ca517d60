"""The synthetic contention model behind ``generate``, not based on measurements.

Every workload needs a fraction of the SMs and of the DRAM and PCIe bandwidth. Its computing slows
down if its cap is below its need; memory accesses and transfers slow down if both jobs together
need more than the GPU has. The partner's demand shrinks as its own cap slows it. A partner's DRAM
traffic also slows a job through the cache, and a few per cent of noise represent everything else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NOISE = 0.04
_CACHE = 0.25
_NO_ISOLATION = 1.06
_IDLE_W, _SM_W, _DRAM_W, _LIMIT_W = 45.0, 150.0, 90.0, 300.0


class Traits(NamedTuple):
    """The demand of each workload alone at full rate; every field has shape (n,).

    ``sm`` and ``occupancy`` are what a profiler shows; ``need`` is the fraction of the SMs above
    which more SMs bring no gain. ``dram`` and ``pcie`` are fractions of the bandwidth.
    ``compute``, ``memory`` and ``transfer`` (sum 1) are the parts of the iteration time, ``cache``
    in 0..1 is the sensitivity to a partner's DRAM traffic.
    """

    sm: Floats
    occupancy: Floats
    need: Floats
    dram: Floats
    pcie: Floats
    compute: Floats
    memory: Floats
    transfer: Floats
    cache: Floats


def draw_traits(draw: np.random.Generator, n: int) -> Traits:
    """Draw ``n`` workloads, from light to saturating."""
    sm = 0.08 + 0.9 * draw.beta(2.2, 1.5, n)
    occupancy = 0.05 + 0.9 * draw.beta(2.0, 2.5, n)
    dram = 0.05 + 0.9 * draw.beta(1.8, 1.8, n)
    pcie = 0.9 * draw.beta(1.2, 4.0, n)
    return traits_of(sm, occupancy, dram, pcie, cache=draw.random(n))


def traits_of(sm: Floats, occupancy: Floats, dram: Floats, pcie: Floats, cache: Floats) -> Traits:
    """Return the traits that follow from a profile (fractions, each of shape (n,))."""
    need = np.clip(1.25 * sm * (0.5 + 0.7 * occupancy), 0.05, 1.0)
    total = sm + 1.1 * dram + 0.8 * pcie
    memory, transfer = 1.1 * dram / total, 0.8 * pcie / total
    compute = 1 - memory - transfer
    return Traits(sm, occupancy, need, dram, pcie, compute, memory, transfer, cache)


def solo_slowdown(traits: Traits, part: float) -> Floats:
    """Return the slowdown of each workload alone when capped at ``part`` of the SMs, shape (n,)."""
    stretch: Floats = np.maximum(1.0, traits.need / part)
    return 1 + traits.compute * (stretch - 1)


def capped_slowdown(traits: Traits, mine: float, theirs: float) -> Floats:
    """Return slowdowns (n, n) without noise: row i with column j, i capped at ``mine``.

    ``mine`` and ``theirs`` are fractions of the SMs.
    """
    stretch = np.maximum(1.0, traits.need / mine)[:, None]
    my_pace, their_pace = (np.minimum(1.0, part / traits.need) for part in (mine, theirs))
    return _combined(traits, stretch, my_pace[:, None], their_pace[None, :])


def open_slowdown(traits: Traits) -> Floats:
    """Return slowdowns (n, n) without noise and without caps: row i with column j."""
    crowd = np.maximum(1.0, traits.need[:, None] + traits.need[None, :])
    return _NO_ISOLATION * _combined(traits, crowd, 1 / crowd, 1 / crowd)


def noisy(draw: np.random.Generator, slowdown: Floats) -> Floats:
    """Return the slowdowns with measurement-like noise, at least 1, to three decimals."""
    noise = 1 + _NOISE * draw.standard_normal(slowdown.shape)
    floored: Floats = np.maximum(1.0, slowdown * noise)
    return floored.round(3)


def solo_power_w(traits: Traits) -> Floats:
    """Return the power of a GPU that runs each workload alone, shape (n,)."""
    return _power_w(traits.sm, traits.dram)


def pair_power_w(traits: Traits, mine: Floats, theirs: Floats) -> Floats:
    """Return the power (n, n) of a GPU shared by i and j at slowdowns ``mine``, ``theirs``."""
    sm = traits.sm[:, None] / mine + traits.sm[None, :] / theirs
    dram = traits.dram[:, None] / mine + traits.dram[None, :] / theirs
    return _power_w(sm, dram)


def _combined(traits: Traits, stretch: Floats, my_pace: Floats, their_pace: Floats) -> Floats:
    def demand(part: Floats) -> Floats:
        return np.maximum(1.0, part[:, None] * my_pace + part[None, :] * their_pace)

    work = (
        traits.compute[:, None] * stretch
        + traits.memory[:, None] * demand(traits.dram)
        + traits.transfer[:, None] * demand(traits.pcie)
    )
    return work * (1 + _CACHE * traits.cache[:, None] * traits.dram[None, :] * their_pace)


def _power_w(sm: Floats, dram: Floats) -> Floats:
    busy = _IDLE_W + _SM_W * np.minimum(1.0, sm) + _DRAM_W * np.minimum(1.0, dram)
    limited: Floats = np.minimum(_LIMIT_W, busy)
    return limited.round(1)
