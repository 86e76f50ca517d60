"""A scheduler that answers with forms at random, so that all of them are tried in any order."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from dovetail.isolation.kernels import LaunchShape
from dovetail.isolation.server import SchedulerServer


class AnyForm(SchedulerServer):
    def __init__(
        self,
        path: Path,
        seed: int = 0,
        forms: tuple[str, ...] = (*3 * ("slices", "workers"), "whole"),
        sizes: tuple[int, ...] = (1, 2, 3, 5),
        kept: Path | None = None,
    ) -> None:
        super().__init__(path, samples=1, kept=kept, unproven=True)
        self._rng, self._forms, self._sizes = random.Random(seed), forms, sizes

    def _form(self, client, request: bytes) -> bytes:
        numbers = struct.unpack("=12I", request)
        kernel = client.modules[numbers[0]].kernels[numbers[1]]
        shape = LaunchShape(numbers[2:5], numbers[5:8], numbers[8], numbers[9])
        fitting = ["whole", *(form for form in kernel.forms if not kernel.why_not(form, shape))]
        form = self._rng.choice([form for form in self._forms if form in fitting])
        kind = ("whole", "slices", "workers").index(form)
        size, chunk = self._rng.choice(self._sizes), self._rng.choice((1, 2, 5))
        return struct.pack("=IIII", kind, size, chunk, 0)

    def _measured(self, client, request: bytes) -> None:
        pass
