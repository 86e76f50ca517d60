"""Kernels that clients of the simulated GPU launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import COSTS


@dataclass(frozen=True)
class KernelKind:
    """A kernel of a stream.

    Attributes
    ----------
    blocks, threads : int
        Of its grid, and of a block.
    block_s : float
        Seconds of a block.
    residency : int
        How many of its blocks an SM holds.
    preemptible : bool
        Whether it has other forms than whole.
    """

    blocks: int
    threads: int
    block_s: float
    residency: int
    preemptible: bool = True

    def alone_s(self, sms: int) -> float:
        """Return the seconds that it takes on an idle GPU."""
        return math.ceil(self.blocks / (sms * self.residency)) * self.block_s


@dataclass(frozen=True)
class Stream:
    """Kernels that a client launches, one after the other.

    Attributes
    ----------
    kinds : tuple of KernelKind
        In their order; a request, or an iteration of training.
    """

    kinds: tuple[KernelKind, ...]

    @staticmethod
    def drawn(
        seed: int,
        *,
        count: int,
        median_s: float,
        sigma: float,
        block_median_s: float,
        sms: int,
        total_s: float | None = None,
    ) -> Stream:
        """Draw kernels whose durations are log-normal.

        Parameters
        ----------
        seed : int
            Of the draw.
        count : int
            Kernels of a request or an iteration.
        median_s, sigma : float
            Median of a kernel's duration alone, and the standard deviation of its logarithm.
        block_median_s : float
            Median of a block's duration; no longer than its kernel.
        sms : int
            Of the GPU.
        total_s : float, optional
            What the durations are scaled to.
        """
        rng = np.random.default_rng(seed)
        lasts = median_s * np.exp(sigma * rng.standard_normal(count))
        if total_s is not None:
            lasts *= total_s / lasts.sum()
        blocks_s = np.minimum(lasts, block_median_s * np.exp(0.5 * rng.standard_normal(count)))
        residency = rng.choice([1, 2, 4, 8], size=count)
        kinds = []
        for last, block_s, fits in zip(lasts, blocks_s, residency, strict=True):
            waves = max(1, round(last / block_s))
            kinds.append(
                KernelKind(
                    blocks=int(waves * sms * fits),
                    threads=int(2048 // fits) if fits > 1 else 1024,
                    block_s=float(last / waves),
                    residency=int(fits),
                )
            )
        return Stream(tuple(kinds))

    def alone_s(self, sms: int) -> float:
        """Return the seconds of a pass on an idle GPU, with the gaps between kernels."""
        return sum(kind.alone_s(sms) + COSTS.gap_s for kind in self.kinds)


@dataclass(frozen=True)
class Work:
    """What a best-effort client does.

    Attributes
    ----------
    stream : Stream
        The kernels of a pass: an iteration of training, or a request.
    arrivals_s : (n,) float, optional
        When passes arrive; without it, one follows the other.
    """

    stream: Stream
    arrivals_s: NDArray[np.float64] | None = None
