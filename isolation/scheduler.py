"""Chooses the forms of best-effort kernels (after Tally, section 4.2).

A best-effort kernel runs in a form that releases the GPU quickly: in slices, or with workers that
can be preempted. The *turnaround* of a form is the time until it releases the GPU: of a slice, or
of a chunk of a worker. Chosen is the form that costs least among those whose turnaround is within
the bound; if there is none, because a single block takes longer, among those with about the
shortest turnaround. A kernel that is shorter than the bound runs unchanged.

The paper measures all forms. Here the kernel is first measured whole. From that time, from its
blocks, and from how many of them an SM holds, a model computes a form of each kind that should keep
the bound, and what it should cost. These are tried from the cheapest on, a few at most, and only
while one could still win by more than a little. What was measured corrects the model: it may lead
to smaller slices or chunks. The choice depends on nothing but the measured times, so it stays once
nothing is left to try, and is the same wherever they are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

BOUND_S: Final = 31.6e-6
"""The longest turnaround, seconds (Tally, section 5.6)."""

SAMPLES: Final = 5
"""Runs in a measurement; the shortest of them counts."""

TRIES: Final = 4
"""Forms of a kernel that are measured at most, besides the whole one."""

MOST_SIZES: Final = 4096
"""Kernels whose times are kept at most, each with the dimensions of its launch."""

# What forms cost on a GPU, in seconds or as a part.

LAUNCH_S: Final = 2e-6
"""What a kernel takes between two events besides its blocks. Assumed."""

PART_S: Final = 2.5e-6
"""Between two slices: the change of kernels (1.5 us) and an open gate (1 us). Assumed."""

STEP_S: Final = 0.56e-6
"""A worker's look at counter and flag. H200: 131,072 blocks took 0.21 ms instead of 0.141, with
1,056 workers and chunks of one block."""

STEPS: Final = 0.05
"""The part of a worker's time that these looks may take. The design's."""

WORKER_SLOWED: Final = 0.25
"""How much longer a block of a worker takes. Tally's paper, section 5.7."""

REPEATS: Final = 0.05
"""The part of a kernel's time that further launches of its workers may take. The design's."""

AGAIN_S: Final = 4e-6
"""A further launch of workers: two changes of kernels and an open gate. Assumed."""

_ABOUT: Final = 1.5
_AS_FAST: Final = 1.02
_LEAST_SLOWED: Final = 0.1

Kind = Literal["whole", "slices", "workers"]


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

    kind: Kind
    size: int = 0
    chunk: int = 1


WHOLE: Final = LaunchForm("whole")


class Size(NamedTuple):
    """The subject of a measurement: a kernel with the dimensions of a launch.

    Attributes
    ----------
    kernel : str
        What identifies its code.
    blocks, threads : int
        Blocks of the grid, and threads of a block.
    shared_bytes : int
        Shared memory that the launch adds to a block.
    """

    kernel: str
    blocks: int
    threads: int
    shared_bytes: int = 0


class Kernel(NamedTuple):
    """A kernel that a client wants to run.

    Attributes
    ----------
    size : Size
        The kernel and its dimensions.
    resident : mapping of str to int
        How many of its blocks an SM holds, by the kinds of forms that it can run in
        (``PreparedKernel.resident``); ``whole`` is one of them.
    """

    size: Size
    resident: Mapping[Kind, int]


class Choice(NamedTuple):
    """The form of a kernel's next run.

    Attributes
    ----------
    form : LaunchForm
        The form.
    final : bool
        Whether it stays, and is not measured any more.
    """

    form: LaunchForm
    final: bool


class Expected(NamedTuple):
    """What a form does, expected or computed from a measurement.

    Attributes
    ----------
    form : LaunchForm
        The form.
    run_s : float
        Seconds that its launches take on the GPU, as they are measured.
    cost_s : float
        What it costs in all, with what is between its launches.
    turnaround_s : float
        Seconds until it releases the GPU.
    """

    form: LaunchForm
    run_s: float
    cost_s: float
    turnaround_s: float


@dataclass
class _Runs:
    """Measured runs of one form: their number, and the shortest."""

    count: int = 0
    least_s: float = math.inf

    def add(self, seconds: float) -> None:
        self.count += 1
        self.least_s = min(self.least_s, seconds)


@dataclass
class FormChoice:
    """Chooses the form in which each kernel is launched.

    Attributes
    ----------
    sms : int
        Streaming multiprocessors of the GPU.
    bound_s : float
        The longest turnaround, seconds.
    samples : int
        The number of runs in a measurement.
    """

    sms: int
    bound_s: float = BOUND_S
    samples: int = SAMPLES
    _runs: dict[Size, dict[LaunchForm, _Runs]] = field(default_factory=dict)

    def add(self, size: Size, form: LaunchForm, seconds: float) -> bool:
        """Record a run, unless there are enough; return whether that completes a measurement.

        Parameters
        ----------
        size : Size
            What has run.
        form : LaunchForm
            How it has run.
        seconds : float
            How long it took on the GPU, without what was between its launches: of slices, the time
            of one by its part of the blocks.
        """
        runs = self._runs.setdefault(size, {}).setdefault(form, _Runs())
        if len(self._runs) > MOST_SIZES:
            del self._runs[next(iter(self._runs))]
        if runs.count >= self.samples or not 0 < seconds < math.inf:
            return False
        runs.add(seconds)
        return runs.count == self.samples

    def know(self, times: Mapping[Size, Mapping[LaunchForm, float]]) -> None:
        """Take over what was measured before, in its order."""
        for size, measured in times.items():
            made = {form: _Runs(self.samples, seconds) for form, seconds in measured.items()}
            self._runs[size] = made

    @property
    def known(self) -> dict[Size, Mapping[LaunchForm, float]]:
        """What was measured completely: seconds by form, in the order of the tries."""
        return {size: found for size in self._runs if (found := self.measured(size))}

    def measured(self, size: Size) -> Mapping[LaunchForm, float]:
        """Return what was measured completely of a kernel: seconds by form."""
        runs = self._runs.get(size, {})
        return {form: one.least_s for form, one in runs.items() if one.count >= self.samples}

    def turnaround_s(self, kernel: Kernel, form: LaunchForm) -> float:
        """Return how long a form takes to release the GPU, or nan if it was not measured."""
        measured = self.measured(kernel.size)
        if form not in measured or WHOLE not in measured:
            return math.nan
        model = KernelModel(kernel, self.sms, self.bound_s, measured[WHOLE])
        return model.measured(form, measured[form]).turnaround_s

    def choice(self, kernel: Kernel) -> Choice:
        """Return the form of a kernel's next run: the chosen form, or the next to measure."""
        if not kernel.resident.keys() - {"whole"}:
            return Choice(WHOLE, final=True)
        measured = self.measured(kernel.size)
        if WHOLE not in measured:
            return Choice(WHOLE, final=False)
        if measured[WHOLE] <= self.bound_s:
            return Choice(WHOLE, final=True)
        model = KernelModel(kernel, self.sms, self.bound_s, measured[WHOLE])
        tried = [
            model.measured(form, seconds)
            for form, seconds in measured.items()
            if form.kind in kernel.resident
        ]
        if len(tried) <= TRIES and (form := self._next(model, tried)):
            return Choice(form, final=False)
        return Choice(self._best(tried), final=True)

    def _next(self, model: KernelModel, tried: list[Expected]) -> LaunchForm | None:
        """Return the form to try next, or None if no other one can win."""
        slowed = model.slowed(tried)
        known = {one.form for one in tried}
        new = [one for one in model.forms(slowed) if one.form not in known]
        limit_s = self._limit_s([*tried, *new])
        costs = [one.cost_s for one in tried if one.turnaround_s <= limit_s]
        to_beat_s = min(costs, default=math.inf) / _AS_FAST
        able = [one for one in new if model.least_cost_s(one.form, slowed) < to_beat_s]
        return min(able, key=lambda one: one.cost_s).form if able else None

    def _best(self, tried: list[Expected]) -> LaunchForm:
        limit_s = self._limit_s(tried)
        keeping = [one for one in tried if one.turnaround_s <= limit_s]
        best = min(keeping, key=lambda one: one.cost_s)
        whole = (one for one in keeping if one.form == WHOLE)
        return next((w.form for w in whole if w.cost_s <= _AS_FAST * best.cost_s), best.form)

    def _limit_s(self, forms: list[Expected]) -> float:
        """Return the longest accepted turnaround: the bound, or about the shortest there is."""
        least_s = min(one.turnaround_s for one in forms)
        return self.bound_s if least_s <= self.bound_s else _ABOUT * least_s


class KernelModel:
    """What forms of a kernel should cost, computed from the time of the whole one.

    Blocks run in waves that fill the GPU, and all take the same time. In a form they take longer by
    a factor that belongs to the kind of form; it is expected until one of the kind was measured.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    sms : int
        Streaming multiprocessors of the GPU.
    bound_s : float
        The turnaround that forms should have at most.
    whole_s : float
        Measured seconds of the whole kernel.
    """

    def __init__(self, kernel: Kernel, sms: int, bound_s: float, whole_s: float) -> None:
        self._blocks, self._bound_s, self._whole_s = kernel.size.blocks, bound_s, whole_s
        self._waves_of = {kind: sms * count for kind, count in kernel.resident.items()}
        waves = -(-self._blocks // self._waves_of["whole"])
        self._block_s = max(whole_s - LAUNCH_S, whole_s / 2) / waves

    def forms(self, slowed: Mapping[Kind, float]) -> Iterator[Expected]:
        """Yield the best form of each kind, if blocks are slowed by the given factors.

        A kind that was not measured has its expected factor.
        """
        expected = {"slices": 1.0, "workers": 1.0 + WORKER_SLOWED, **slowed}
        if "slices" in self._waves_of and (form := self._slices(expected["slices"])):
            yield self.at(form, expected["slices"])
        if "workers" in self._waves_of and (form := self._workers(expected["workers"])):
            yield self.at(form, expected["workers"])

    def at(self, form: LaunchForm, slowed: float) -> Expected:
        """Return what a form does whose blocks take longer by a factor."""
        block_s = self._block_s * slowed
        match form.kind:
            case "whole":
                run_s = self._whole_s * slowed
                return Expected(form, run_s, run_s + PART_S, run_s)
            case "slices":
                width = self._waves_of["slices"]
                parts, rest = divmod(self._blocks, form.size)
                waves = parts * -(-form.size // width) + -(-rest // width)
                parts += rest > 0
                each_s = -(-form.size // width) * block_s + LAUNCH_S
                cost_s = waves * block_s + parts * (LAUNCH_S + PART_S)
                return Expected(form, each_s * self._blocks / form.size, cost_s, each_s)
            case "workers":
                each_s = form.chunk * block_s + STEP_S
                turns = -(-self._blocks // (form.chunk * form.size))
                run_s = turns * each_s + LAUNCH_S
                again = 1 + max(1, int(REPEATS * run_s / AGAIN_S))
                return Expected(form, run_s, run_s + again * AGAIN_S, each_s)

    def measured(self, form: LaunchForm, run_s: float) -> Expected:
        """Return what a form does that was measured."""
        return self.at(form, self._slowed(form, run_s))

    def slowed(self, measured: Iterable[Expected]) -> dict[Kind, float]:
        """Return the factors of the kinds of measured forms; of each the last one counts."""
        return {one.form.kind: self._slowed(one.form, one.run_s) for one in measured}

    def _slowed(self, form: LaunchForm, run_s: float) -> float:
        least, more = self.at(form, 0.0).run_s, self.at(form, 1.0).run_s
        return max(_LEAST_SLOWED, (run_s - least) / (more - least))

    def least_cost_s(self, form: LaunchForm, slowed: Mapping[Kind, float]) -> float:
        """Return what a form costs at least: with its kind's factor, or with none."""
        return self.at(form, slowed.get(form.kind, 1.0)).cost_s

    def _slices(self, slowed: float) -> LaunchForm | None:
        """Return the fewest slices of full waves within the bound, all about as long."""
        width = self._waves_of["slices"]
        waves = -(-self._blocks // width)
        if waves < 2:
            return None
        most = max(1, int((self._bound_s - LAUNCH_S) / (self._block_s * slowed)))
        parts = max(2, -(-waves // most))
        return LaunchForm("slices", -(-waves // parts) * width)

    def _workers(self, slowed: float) -> LaunchForm | None:
        """Return as many workers as fit, with the cheapest chunk within the bound."""
        width, block_s = self._waves_of["workers"], self._block_s * slowed
        if self._blocks <= width:
            return None
        most = max(1, int((self._bound_s - STEP_S) / block_s))
        useful = math.ceil(STEP_S / (STEPS * block_s))
        chunks = range(1, min(most, useful, self._blocks // width) + 1)
        forms = (self.at(LaunchForm("workers", width, chunk), slowed) for chunk in chunks)
        return min(forms, key=lambda one: one.cost_s).form
