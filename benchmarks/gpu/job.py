"""A job of the batch: so many iterations of a built-in workload, or of a loop on a core.

    python job.py WORKLOAD ITERATIONS

Prints its progress, and last how many seconds its iterations took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

LOOP = "loop"
"""The workload that needs neither PyTorch nor a GPU."""


def prepared(name: str) -> Callable[[int], object]:
    """Return a function that does so many iterations of a workload and waits for their end."""
    if name == LOOP:
        return lambda count: [sum(range(20_000)) for _ in range(count)]
    import torch

    from dovetail.measuring.workloads.loading import load

    step = load(name, "full").prepare("cuda", "full", 1)

    def iterate(count: int) -> None:
        for _ in range(count):
            step()
        torch.cuda.synchronize()

    return iterate


def main() -> None:
    name, total = sys.argv[1], int(sys.argv[2])
    iterate = prepared(name)
    iterate(3)
    chunk, done, began_s = max(1, total // 100), 0, time.monotonic()
    while done < total:
        iterate(min(chunk, total - done))
        done = min(done + chunk, total)
        print(f"step {done}", flush=True)
    print(f"{done} iterations in {time.monotonic() - began_s:.3f} s", flush=True)


if __name__ == "__main__":
    main()
