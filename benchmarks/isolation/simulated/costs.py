"""What takes time on the simulated GPU besides blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Costs:
    """What takes time besides blocks, in seconds, and where each figure is from.

    Attributes
    ----------
    gap_s : float
        Between two kernels of a stream that are both queued. Assumed.
    launch_s : (float, float)
        From a launch by the host into an idle stream to the first block: least and most. H200.
    turnover_s : float
        Between two requests of which the second waits: the host sees the end, answers, and
        launches. Assumed.
    contention : float
        How much blocks are slowed while others have all other SMs. Assumed.
    noise : float
        Standard deviation of the logarithm of a block's duration. Assumed.
    mark_s : float
        A write of the GPU behind a kernel, in its stream. Assumed.
    seen_s, seen_99_s : float
        Until the host sees such a write: median and 99th percentile. H200.
    wait_s : float
        A wait of a stream at an open gate. Assumed.
    open_s : float
        From the opening of a gate to the first block of a kernel that waits there. Assumed.
    close_s : float
        Until a stream sees that a gate was closed. Assumed.
    event_s : float
        An event in a stream. Assumed.
    wake_s : float
        Until the guard of a process runs after it was woken. Assumed.
    flag_s : float
        From the guard to workers that read the flag in device memory. Assumed: like a launch.
    flag_again_s : float
        Between two writes of the flag. The design's.
    worker_step_s : float
        A look at the counter and the flag, for each chunk of a worker. H200: 131,072 short blocks
        took 0.21 ms instead of 0.141, with 1,056 workers.
    worker_slowed : float
        How much longer a block of a worker takes. Tally's paper, section 5.7.
    repeats : float
        The part of a kernel's time that more launches of its workers may cost. The design's.
    host_read_s : float
        A read of host memory by the GPU, one at a time. H200. Before the gate only.
    spin_s, sleep_s : float
        How long the host looked without a pause, and between two looks from then on: a sleep of 20
        us and the timer's slack of 50, measured on a CPU. Before the gate only.
    quantum_s, switch_s : float
        A turn of a client under time slicing, and the change to another one. Assumed.
    """

    gap_s: float = 1.5e-6
    launch_s: tuple[float, float] = (5e-6, 10e-6)
    turnover_s: float = 20e-6
    contention: float = 0.5
    noise: float = 0.02
    mark_s: float = 1e-6
    seen_s: float = 4.7e-6
    seen_99_s: float = 9e-6
    wait_s: float = 1e-6
    open_s: float = 3e-6
    close_s: float = 1e-6
    event_s: float = 1e-6
    wake_s: float = 5e-6
    flag_s: float = 7.5e-6
    flag_again_s: float = 10e-6
    worker_step_s: float = 0.56e-6
    worker_slowed: float = 0.25
    repeats: float = 0.05
    host_read_s: float = 1e-6
    spin_s: float = 5e-6
    sleep_s: float = 85e-6
    quantum_s: float = 2e-3
    switch_s: float = 100e-6


COSTS: Final = Costs()
