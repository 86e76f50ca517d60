"""What the library knows of kernels on the simulated GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.isolation.scheduler import SAMPLES, WHOLE, FormChoice, Kernel, Kind, LaunchForm, Size

from .device import Device
from .kernels import KernelKind


class KernelMeasures:
    """What the library knows of a client's kernels: times of the whole ones, and forms."""

    def __init__(
        self, gpu: Device, name: str, kinds: Sequence[KernelKind], *, forms: Sequence[Kind]
    ) -> None:
        self._choice = FormChoice(gpu.sms, gpu.bound_s)
        self._final: dict[int, tuple[LaunchForm, float]] = {}
        """Final forms with their turnarounds."""
        self.kernels = [
            Kernel(
                Size(f"{name} {place}", kind.blocks, kind.threads),
                dict.fromkeys(("whole", *(forms if kind.preemptible else ())), kind.residency),
            )
            for place, kind in enumerate(kinds)
        ]
        self._runs = [0] * len(kinds)
        self._least_s = [math.inf] * len(kinds)

    def has_forms(self, place: int) -> bool:
        """Return whether a kernel has forms besides the whole one."""
        return len(self.kernels[place].resident) > 1

    def is_timed(self, place: int) -> bool:
        """Return whether the whole kernel has run as often as it is measured."""
        return self._runs[place] >= SAMPLES

    def whole_s(self, place: int) -> float | None:
        """Return the least time of the whole kernel, if there is one."""
        return self._least_s[place] if self._runs[place] else None

    def form(self, place: int) -> LaunchForm:
        """Return the form of a kernel's next launch."""
        if place in self._final:
            return self._final[place][0]
        kernel = self.kernels[place]
        form, final = self._choice.choice(kernel)
        if final and self.is_timed(place):
            self._final[place] = form, self._choice.turnaround_s(kernel, form)
        return form

    def turnaround_s(self, place: int, form: LaunchForm) -> float:
        """Return how long a form takes to release the GPU, or nan if it was not measured."""
        final, seconds = self._final.get(place, (None, math.nan))
        return seconds if form == final else self._choice.turnaround_s(self.kernels[place], form)

    def run_s(self, place: int, form: LaunchForm) -> float | None:
        """Return the least time of a form's launches, if it was measured."""
        return self._choice.measured(self.kernels[place].size).get(form)

    def add(self, place: int, form: LaunchForm, seconds: float) -> None:
        """Note the time of a launch, without its waits."""
        if form == WHOLE and not self.is_timed(place):
            self._runs[place] += 1
            self._least_s[place] = min(self._least_s[place], seconds)
        if self.has_forms(place):
            self._choice.add(self.kernels[place].size, form, seconds)

    @property
    def are_final(self) -> bool:
        """Whether nothing is left to measure."""
        for place in range(len(self.kernels)):
            self.form(place)
        return len(self._final) == len(self.kernels)
