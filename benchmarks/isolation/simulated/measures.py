"""What the library knows of kernels on the simulated GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.isolation.scheduler import SAMPLES, WHOLE, FormChoice, Kernel, LaunchForm, Size

from .device import Device
from .kernels import KernelKind


class KernelMeasures:
    """What the library knows of a client's kernels: times of the whole ones, and forms."""

    def __init__(
        self, gpu: Device, name: str, kinds: Sequence[KernelKind], *, forms: Sequence[str]
    ) -> None:
        self.choice = FormChoice(gpu.sms, gpu.bound_s)
        self.kernels = [
            Kernel(
                Size(f"{name} {place}", kind.blocks, kind.threads),
                sliceable=kind.preemptible and "slices" in forms,
                preemptible=kind.preemptible and "workers" in forms,
            )
            for place, kind in enumerate(kinds)
        ]
        self._runs = [0] * len(kinds)
        self._least_s = [math.inf] * len(kinds)

    def has_forms(self, place: int) -> bool:
        """Return whether a kernel has forms besides the whole one."""
        return self.kernels[place].sliceable or self.kernels[place].preemptible

    def is_timed(self, place: int) -> bool:
        """Return whether the whole kernel has run as often as it is measured."""
        return self._runs[place] >= SAMPLES

    def whole_s(self, place: int) -> float | None:
        """Return the least time of the whole kernel, if there is one."""
        return self._least_s[place] if self._runs[place] else None

    def form(self, place: int) -> LaunchForm:
        """Return the form of a kernel's next launch."""
        return self.choice.form(self.kernels[place]) if self.has_forms(place) else WHOLE

    def add(self, place: int, form: LaunchForm, seconds: float) -> None:
        """Note the time of a launch, without its waits."""
        if form == WHOLE and not self.is_timed(place):
            self._runs[place] += 1
            self._least_s[place] = min(self._least_s[place], seconds)
        if self.has_forms(place):
            size = self.kernels[place].size
            self.choice.add(size, form, seconds / size.blocks)

    @property
    def are_final(self) -> bool:
        """Whether nothing is left to measure."""
        return all(
            self.choice.chosen(kernel.size) if self.has_forms(place) else self.is_timed(place)
            for place, kernel in enumerate(self.kernels)
        )
