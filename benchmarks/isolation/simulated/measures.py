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
        self.choice = FormChoice(gpu.sms, gpu.bound_s)
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
        return self.choice.choice(self.kernels[place]).form

    def add(self, place: int, form: LaunchForm, seconds: float) -> None:
        """Note the time of a launch, without its waits."""
        if form == WHOLE and not self.is_timed(place):
            self._runs[place] += 1
            self._least_s[place] = min(self._least_s[place], seconds)
        if self.has_forms(place):
            self.choice.add(self.kernels[place].size, form, seconds)

    @property
    def are_final(self) -> bool:
        """Whether nothing is left to measure."""
        return all(
            self.is_timed(place) and self.choice.choice(kernel).final
            for place, kernel in enumerate(self.kernels)
        )
