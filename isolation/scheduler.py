"""Chooses the forms of best-effort kernels (Tally, section 4.2).

A best-effort kernel runs in a form that releases the GPU quickly: in slices, or with workers that
can be preempted. The form is chosen by measuring its runs, for each size of its grid and blocks
(Fig. 4 of the paper). The *turnaround* of a form is the time until it releases the GPU: the time of
a slice, or of one block of a worker, which is kernel time x workers / blocks (equation 1). The
fastest form whose turnaround is within the bound is chosen; if there is none, because a single
block takes longer, the fastest form with about the shortest turnaround.

Two things differ from the paper. A kernel that is shorter than the bound runs unchanged. And forms
are tried from the shortest turnaround on, and only if earlier measurements predict that they are
within the bound, so that measuring does not delay the latency-critical client either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

BOUND_S: Final = 31.6e-6
"""The longest turnaround, seconds (Tally, section 5.6)."""

SAMPLES: Final = 10
"""The number of runs in a measurement (Tally, section 4.2)."""

_SLICES: Final = (0.05, 0.2, 0.5)
_ABOUT: Final = 1.5
_AS_FAST: Final = 1.02
_MOST_THREADS_AN_SM: Final = 2048
_MOST_BLOCKS_AN_SM: Final = 32


class LaunchForm(NamedTuple):
    """How a kernel is launched.

    Attributes
    ----------
    kind : str
        ``whole``, ``slices`` or ``workers``.
    size : int
        Blocks of a slice, or the number of workers; 0 for ``whole``.
    chunk : int
        Consecutive blocks that a worker takes at a time.
    """

    kind: str
    size: int = 0
    chunk: int = 1


WHOLE: Final = LaunchForm("whole")


class Size(NamedTuple):
    """The subject of a measurement: a kernel at a grid and block size.

    Attributes
    ----------
    kernel : str
        Its name.
    blocks, threads : int
        Blocks of the grid, and threads of a block.
    """

    kernel: str
    blocks: int
    threads: int


@dataclass
class Kernel:
    """A kernel that a client wants to run.

    Attributes
    ----------
    size : Size
        The kernel's name and dimensions.
    sliceable, preemptible : bool
        Its available forms (``PreparedKernel.why_not``).
    """

    size: Size
    sliceable: bool = True
    preemptible: bool = True


@dataclass
class _BlockTime:
    """Measured runs of one form: their number, and mean seconds per block of the grid."""

    runs: int = 0
    block_s: float = 0.0

    def add(self, block_s: float) -> None:
        self.runs += 1
        self.block_s += (block_s - self.block_s) / self.runs


class FormChoice:
    """Chooses the form in which each kernel is launched, by measuring its available forms.

    Parameters
    ----------
    sms : int
        Streaming multiprocessors of the GPU.
    bound_s : float
        The longest turnaround, seconds.
    samples : int
        The number of runs in a measurement.
    """

    def __init__(self, sms: int, bound_s: float = BOUND_S, samples: int = SAMPLES) -> None:
        self._sms, self._bound_s, self._samples = sms, bound_s, samples
        self._measured: dict[Size, dict[LaunchForm, _BlockTime]] = {}
        self._chosen: dict[Size, LaunchForm] = {}

    def add(self, size: Size, form: LaunchForm, block_s: float) -> None:
        """Record a run: its seconds per block of the grid."""
        self._measured.setdefault(size, {}).setdefault(form, _BlockTime()).add(block_s)

    def chosen(self, size: Size) -> LaunchForm | None:
        """Return the form chosen for a kernel, or None while it is being measured."""
        return self._chosen.get(size)

    def turnaround_s(self, size: Size, form: LaunchForm) -> float:
        """Return how long a form takes to release the GPU, or nan if it was not measured."""
        measured = self._measured.get(size, {}).get(form)
        return math.nan if measured is None else _turnaround_s(size, form, measured.block_s)

    def form(self, kernel: Kernel) -> LaunchForm:
        """Return the form of a kernel's next run: the chosen form, or the next to measure."""
        size = kernel.size
        if size in self._chosen:
            return self._chosen[size]
        if not (kernel.sliceable or kernel.preemptible):
            return WHOLE
        measured = self._measured.get(size, {})
        for form in self._candidates(kernel):
            runs = measured[form].runs if form in measured else 0
            if runs < self._samples and self._may_try(size, form, measured):
                return form
        self._chosen[size] = self._best(size, measured)
        return self._chosen[size]

    def _candidates(self, kernel: Kernel) -> Iterator[LaunchForm]:
        """Yield the possible forms of a kernel, from the shortest turnaround on."""
        blocks, threads = kernel.size.blocks, kernel.size.threads
        if kernel.preemptible:
            multiple = 1
            while multiple * threads <= _MOST_THREADS_AN_SM and multiple <= _MOST_BLOCKS_AN_SM:
                if multiple == 1 or multiple * self._sms < blocks:
                    yield LaunchForm("workers", min(multiple * self._sms, blocks))
                multiple *= 2
        if kernel.sliceable:
            sizes = {math.ceil(part * blocks) for part in _SLICES}
            yield from (LaunchForm("slices", size) for size in sorted(sizes) if size < blocks)
        yield WHOLE

    def _may_try(
        self, size: Size, form: LaunchForm, measured: Mapping[LaunchForm, _BlockTime]
    ) -> bool:
        """Return whether a form is expected to keep the bound, by the forms measured so far."""
        if not measured or form in measured:
            return True
        # A slice takes at least as long as one of its blocks.
        block_s = min(one.block_s for one in measured.values())
        expected_s = 0.0 if form.kind == "workers" else _turnaround_s(size, form, block_s)
        return expected_s <= self._limit_s(size, measured)

    def _limit_s(self, size: Size, measured: Mapping[LaunchForm, _BlockTime]) -> float:
        """Return the longest accepted turnaround: the bound, or a little above the shortest."""
        least_s = min(_turnaround_s(size, form, one.block_s) for form, one in measured.items())
        return max(self._bound_s, _ABOUT * least_s)

    def _best(self, size: Size, measured: Mapping[LaunchForm, _BlockTime]) -> LaunchForm:
        limit_s = self._limit_s(size, measured)
        keeping = [
            form
            for form, one in measured.items()
            if _turnaround_s(size, form, one.block_s) <= limit_s
        ]
        fastest = min(keeping, key=lambda form: measured[form].block_s)
        if WHOLE in keeping and measured[WHOLE].block_s <= _AS_FAST * measured[fastest].block_s:
            return WHOLE
        return fastest


def _turnaround_s(size: Size, form: LaunchForm, block_s: float) -> float:
    """Return the turnaround of a form whose kernel takes ``block_s`` per block of the grid."""
    match form.kind:
        case "workers":
            return block_s * form.size
        case "slices":
            return block_s * min(form.size, size.blocks)
    return block_s * size.blocks
