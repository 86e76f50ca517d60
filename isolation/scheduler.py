"""What a GPU runs next, with a latency-critical client and best-effort ones (Tally, section 4.2).

Pure logic: events go in, orders come out, and nothing here waits or reads a clock. Kernels of the
latency-critical client are launched as they come. Those of a best-effort client run one at a time,
only while the latency-critical client has none, and in a form that gives the GPU up quickly: in
slices, or with workers that can be preempted.

Which form a kernel takes is found by measuring it as it runs, for each size of its grid and blocks
(Fig. 4 there). The *turnaround* of a form is the time it takes to give the GPU up: that of a slice,
or of one block of a worker, which is kernel time x workers / blocks (equation 1). Of the forms
whose turnaround keeps the bound, the fastest is taken; if none does, since one block alone is
longer, of those that are about as quick to give up as the quickest.

Two things differ from the paper. A kernel that is shorter than the bound runs as it is. And the
forms are tried from the shortest turnaround on, and only if what was measured before says that they
keep the bound, so that measuring does not delay the latency-critical client either.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

BOUND_S: Final = 31.6e-6
"""The longest turnaround, seconds (Tally, section 5.6)."""

SAMPLES: Final = 10
"""So many runs make a measurement (Tally, section 4.2)."""

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
    """

    kind: str
    size: int = 0


WHOLE: Final = LaunchForm("whole")


class Size(NamedTuple):
    """What a measurement holds for: a kernel at a grid and block size.

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
        What it is.
    sliceable, preemptible : bool
        Which forms it has (``PreparedKernel.why_not``).
    done : int
        Blocks that have been executed.
    """

    size: Size
    sliceable: bool = True
    preemptible: bool = True
    done: int = 0


class KernelLaunch(NamedTuple):
    """An order: launch a part of a kernel.

    Attributes
    ----------
    client : str
        Whose current kernel.
    kernel : Kernel
        The kernel.
    form : LaunchForm
        How.
    first, blocks : int
        The first block, and how many: of a slice its own, else all that are left.
    """

    client: str
    kernel: Kernel
    form: LaunchForm
    first: int
    blocks: int


class Preempt(NamedTuple):
    """An order: raise the flag of the workers that a client's kernel runs with."""

    client: str


Order = KernelLaunch | Preempt


@dataclass
class _Measured:
    """Runs of one form: seconds per block of the grid, and the longest time of giving up."""

    runs: int = 0
    block_s: float = 0.0

    def add(self, block_s: float) -> None:
        self.runs += 1
        self.block_s += (block_s - self.block_s) / self.runs


class FormChoice:
    """Finds the form that each kernel is launched in, by measuring the forms it has.

    Parameters
    ----------
    sms : int
        Streaming multiprocessors of the GPU.
    bound_s : float
        The longest turnaround, seconds.
    samples : int
        How many runs make a measurement.
    """

    def __init__(self, sms: int, bound_s: float = BOUND_S, samples: int = SAMPLES) -> None:
        self._sms, self._bound_s, self._samples = sms, bound_s, samples
        self._measured: dict[Size, dict[LaunchForm, _Measured]] = {}
        self._chosen: dict[Size, LaunchForm] = {}

    def add(self, size: Size, form: LaunchForm, block_s: float) -> None:
        """Note a run: its seconds per block of the grid."""
        self._measured.setdefault(size, {}).setdefault(form, _Measured()).add(block_s)

    def chosen(self, size: Size) -> LaunchForm | None:
        """Return the form that was chosen for a kernel; None while it is measured."""
        return self._chosen.get(size)

    def turnaround_s(self, size: Size, form: LaunchForm) -> float:
        """Return how long a form takes to give the GPU up; nan where it was not measured."""
        measured = self._measured.get(size, {}).get(form)
        return math.nan if measured is None else _turnaround_s(size, form, measured.block_s)

    def form(self, kernel: Kernel) -> LaunchForm:
        """Return the form of a kernel's next run: the one chosen, or one to be measured."""
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
        """Yield the forms that a kernel can have, from the shortest turnaround on."""
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
        self, size: Size, form: LaunchForm, measured: Mapping[LaunchForm, _Measured]
    ) -> bool:
        """Tell whether a form is expected to keep the bound; the first ones show it."""
        if not measured or form in measured:
            return True
        # A slice takes as long as one of its blocks, at least.
        block_s = min(one.block_s for one in measured.values())
        expected_s = 0.0 if form.kind == "workers" else _turnaround_s(size, form, block_s)
        return expected_s <= self._limit_s(size, measured)

    def _limit_s(self, size: Size, measured: Mapping[LaunchForm, _Measured]) -> float:
        """Return the longest turnaround that is accepted: the bound, or what is about the least."""
        least_s = min(_turnaround_s(size, form, one.block_s) for form, one in measured.items())
        return max(self._bound_s, _ABOUT * least_s)

    def _best(self, size: Size, measured: Mapping[LaunchForm, _Measured]) -> LaunchForm:
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


@dataclass
class _ClientQueue:
    """What a client waits for.

    ``part`` is what runs now; ``stopping`` whether it was asked to give up.
    """

    critical: bool
    queue: deque[Kernel] = field(default_factory=deque)
    part: KernelLaunch | None = None
    stopping: bool = False


class Scheduler:
    """Decides what runs on one GPU.

    Parameters
    ----------
    sms : int
        Streaming multiprocessors of the GPU.
    bound_s : float
        The longest turnaround, seconds.
    samples : int
        How many runs make a measurement.
    """

    def __init__(self, sms: int, bound_s: float = BOUND_S, samples: int = SAMPLES) -> None:
        self._sms = sms
        self.choice: Final = FormChoice(sms, bound_s, samples)
        self._clients: dict[str, _ClientQueue] = {}

    def join(self, client: str, *, critical: bool) -> None:
        """Let a client in; at most one should be latency-critical."""
        self._clients[client] = _ClientQueue(critical)

    def leave(self, client: str) -> list[Order]:
        """Forget a client that has ended, with what it still waits for."""
        del self._clients[client]
        return self._next()

    def submit(self, client: str, kernel: Kernel) -> list[Order]:
        """Take a client's next kernel and return what is to be done."""
        self._clients[client].queue.append(kernel)
        return self._next()

    def ended(self, client: str, blocks: int, seconds: float) -> list[Order]:
        """Note that what a client had running is over.

        Parameters
        ----------
        client : str
            Whose launch.
        blocks : int
            Blocks that it executed; fewer than were launched where it was preempted.
        seconds : float
            From its first block to its last.
        """
        state = self._clients[client]
        part = state.part
        assert part is not None
        kernel = part.kernel
        # Long kernels never run in one go beside a busy client: what they did until they were
        # preempted counts, too, once every worker has had a block.
        if not state.critical and blocks and blocks >= min(part.form.size, part.blocks):
            self.choice.add(kernel.size, part.form, seconds / blocks)
        kernel.done += blocks
        state.part, state.stopping = None, False
        if kernel.done >= kernel.size.blocks:
            state.queue.popleft()
        return self._next()

    # What to do.

    def _next(self) -> list[Order]:
        """Return what is to be done: the latency-critical client first, the others in its gaps."""
        orders: list[Order] = []
        critical_waits = False
        for name, client in self._clients.items():
            if client.critical and client.queue:
                critical_waits = True
                if client.part is None:
                    orders.append(self._launched(name, client, WHOLE))
        for name, client in self._clients.items():
            if client.critical:
                continue
            if critical_waits:
                if client.part is not None and not client.stopping:
                    client.stopping = True
                    if client.part.form.kind == "workers":
                        orders.append(Preempt(name))
            elif client.part is None and client.queue:
                orders.append(self._launched(name, client, self.choice.form(client.queue[0])))
        # Room is made before it is taken.
        return sorted(orders, key=lambda order: isinstance(order, KernelLaunch))

    def _launched(self, name: str, client: _ClientQueue, form: LaunchForm) -> KernelLaunch:
        kernel = client.queue[0]
        left = kernel.size.blocks - kernel.done
        if kernel.done and form.kind == "whole":
            # What has begun cannot be launched whole: the rest is one slice, or workers.
            form = LaunchForm("slices", left)
            if not kernel.sliceable:
                form = LaunchForm("workers", min(self._sms, left))
        blocks = min(form.size, left) if form.kind == "slices" else left
        client.part = KernelLaunch(name, kernel, form, kernel.done, blocks)
        return client.part


def _turnaround_s(size: Size, form: LaunchForm, block_s: float) -> float:
    """Return the turnaround of a form whose kernel takes ``block_s`` per block of the grid."""
    match form.kind:
        case "workers":
            return block_s * form.size
        case "slices":
            return block_s * min(form.size, size.blocks)
    return block_s * size.blocks
